"""The tables as BigQuery DDL and as a page of documentation, generated from `uploader.schema`.

Also the statements that insert the rows of a batch into a table, one row per key, and the commands that grant the
minimum IAM roles for uploading and for reading. Pure functions.

Two INSERT or MERGE statements do not conflict on BigQuery unless one of them updates or deletes rows: two uploaders
could both find a key missing and both insert it. Each transaction therefore first updates the single row of the table
`lease`. If two concurrent transactions update the same table, one is aborted (cloud.google.com/bigquery/docs/
transactions, "Transaction concurrency"), and all reads of a transaction use one snapshot: a transaction that commits
has read every row that was committed before it began, and no other has committed since.
"""

from __future__ import annotations

from keras_matrix.uploader import schema
from keras_matrix.uploader.bigquery.partition_pruning import push_down_day_filters
from keras_matrix.uploader.outbox import Batch
from keras_matrix.uploader.schema import TABLES, TABLES_VERSION, ColumnMode, Table, TableColumn
from keras_matrix.uploader.sql import meaning_of_view, qualified, since, views
from keras_matrix.uploader.warehouse import MOST_DAYS

APPENDED = schema.APPENDED
LEASE = "lease"
NO_NUMBER = -1  # steps and counts begin at 0
ROLES = """minimum roles, as commands of the Google Cloud CLI (UPLOADER and READER are service accounts or users):

  # the uploader: run jobs in the project, {uploader}
  gcloud projects add-iam-policy-binding {project} --member=UPLOADER --role=roles/bigquery.jobUser
{grants}

  # dashboards: run jobs, read this one dataset; cap each query with maximum_bytes_billed
  gcloud projects add-iam-policy-binding {project} --member=READER --role=roles/bigquery.jobUser
  bq query --use_legacy_sql=false \\
    'GRANT `roles/bigquery.dataViewer` ON SCHEMA `{project}`.{dataset} TO "READER"'

  # only `uploader init` creates datasets and needs, once: roles/bigquery.user on the project"""
GRANT_EDITOR = """  bq query --use_legacy_sql=false \\
    'GRANT `roles/bigquery.dataEditor` ON SCHEMA `{project}`.{dataset} TO "UPLOADER"'"""


def statements(dataset: str) -> list[str]:
    """Return the statements that create all tables and views in a dataset (`PROJECT.DATASET`)."""
    return [*(create_table(dataset, table) for table in TABLES), *create_views(dataset).values()]


def create_table(dataset: str, table: Table, suffix: str = "") -> str:
    """Return the DDL of a table: partitioned by day, clustered, each column with a description."""
    columns_sql = ",\n".join(f"  {_column(column)}" for column in table.columns)
    name = quoted(dataset, table.name + suffix)
    return (
        f"CREATE TABLE IF NOT EXISTS {name} (\n{columns_sql}\n)\nPARTITION BY day\n"
        f"CLUSTER BY {', '.join(table.clustered)}\n"
        f"OPTIONS (description = {text(f'{table.meaning} Version {TABLES_VERSION}.')})"
    )


def create_lease(dataset: str) -> str:
    """Return the DDL of the table whose single row every transaction updates first."""
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(dataset, LEASE)}\n"
        'OPTIONS (description = "One row. Each inserting transaction updates it first, so that concurrent ones '
        'conflict.")\n'
        "AS SELECT CAST(NULL AS STRING) AS holder, CURRENT_TIMESTAMP() AS taken_at"
    )


def count_lease(dataset: str) -> str:
    """Return the query for the number of rows of `lease`, which reads no column and is free."""
    return f"SELECT COUNT(*) AS n FROM {quoted(dataset, LEASE)}"


def insert_lease_row(dataset: str) -> str:
    """Return the statement that inserts the row of `lease` if it is missing."""
    lease = quoted(dataset, LEASE)
    return (
        f"INSERT INTO {lease} (holder, taken_at)\nSELECT CAST(NULL AS STRING), CURRENT_TIMESTAMP() FROM (SELECT 1) "
        f"WHERE NOT EXISTS (SELECT 1 FROM {lease})"
    )


def create_views(dataset: str, first_day: str | None = None, *, append_only: bool = False) -> dict[str, str]:
    """Return the DDL of each view by name, in an order in which they can be created.

    They read the days from `first_day` on (such as 2026-01-31), by default the last `MOST_DAYS`.
    """
    return {name: create_view(dataset, name, first_day, append_only=append_only) for name in views()}


def create_view(dataset: str, name: str, first_day: str | None = None, *, append_only: bool = False) -> str:
    """Return the DDL of a view."""
    bound_sql = f"DATE_SUB(CURRENT_DATE(), INTERVAL {MOST_DAYS} DAY)" if first_day is None else f"DATE '{first_day}'"
    sql = views()[name]
    names = [table.name + suffix for table in TABLES for suffix in ("", APPENDED)] + list(views())
    body = qualified(push_down_day_filters(sql) if append_only else sql, dataset, names)
    meaning = f"{meaning_of_view(sql)} Reads {days_read(first_day)}."
    head_text = f"CREATE OR REPLACE VIEW {quoted(dataset, name)}\nOPTIONS (description = {text(meaning)})"
    return f"{head_text}\nAS {since(body, bound_sql)}"


def days_read(first_day: str | None) -> str:
    """Return which days the views of a dataset read, in words."""
    return f"the last {MOST_DAYS} days" if first_day is None else f"the days from {first_day} on"


def deduplicating_view(dataset: str, table: Table) -> str:
    """Return the DDL of the view with one row per key of an append-only table.

    `day` is a column of PARTITION BY, so that a filter on it may be applied before the window
    (`uploader.bigquery.partition_pruning`).
    """
    keys_sql = ", ".join(("day", *table.key))
    columns_sql = ", ".join(column.name for column in table.columns)
    return (
        f"CREATE OR REPLACE VIEW {quoted(dataset, table.name)}\n"
        f"OPTIONS (description = {text(table.meaning)})\nAS SELECT {columns_sql} FROM (\n"
        f"  SELECT *, ROW_NUMBER() OVER (PARTITION BY {keys_sql} ORDER BY row_hash) AS place\n"
        f"  FROM {quoted(dataset, table.name + APPENDED)}\n) AS numbered\nWHERE place = 1"
    )


def page() -> str:
    """Return the page of the tables, in Markdown."""
    head_text = (
        "# The warehouse's tables\n\n"
        f"Generated from `records/schema.py`; version {TABLES_VERSION}, which `uploader schema --markdown` prints. "
        "BigQuery and\n`results/warehouse` have the same tables. How rows are uploaded: [bigquery.md](bigquery.md).\n"
    )
    sections = [head_text, *(_table(table) for table in TABLES)]
    for name, sql in views().items():
        sections.append(f"## {name} (view)\n\n{meaning_of_view(sql)}\n")
    return "\n".join(sections)


def quoted(dataset: str, name: str) -> str:
    """Return the quoted identifier of a table."""
    return "`" + f"{dataset}.{name}".replace("`", "") + "`"


def text(value: str) -> str:
    """Return a string literal of BigQuery's SQL."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _column(column: TableColumn) -> str:
    kind = f"ARRAY<{column.type}>" if column.mode is ColumnMode.REPEATED else str(column.type)
    required_sql = " NOT NULL" if column.mode is ColumnMode.REQUIRED else ""
    return f"{column.name} {kind}{required_sql} OPTIONS (description = {text(column.meaning)})"


def _table(table: Table) -> str:
    rows_text = "\n".join(
        f"| `{column.name}` | {column.type} | {column.mode.lower()} | {column.meaning} |" for column in table.columns
    )
    heads_text = "| column | type | mode | meaning |\n|---|---|---|---|"
    return (
        f"## {table.name}\n\n{table.meaning} Partitioned by `day`, clustered by "
        f"{' and '.join(f'`{name}`' for name in table.clustered)}; one row for each "
        f"{', '.join(f'`{name}`' for name in table.key)}.\n\n{heads_text}\n{rows_text}\n"
    )


def insert_missing(dataset: str, batch: Batch, staging: str, retained_from: str | None) -> str:
    """Return the script that inserts a batch's missing rows from its staging table.

    Its result is one row: `added`, the number of inserted rows, `missing`, the number of rows that are still missing,
    and `leased`, the number of updated rows of `lease`. If that is 0, nothing is inserted: an UPDATE of no row cannot
    conflict. Rows of days before `retained_from`, which expire on arrival, do not count as missing.
    """
    names_sql = ", ".join(column.name for column in batch.table.columns)
    keys_sql = ", ".join(f"S.{name}" for name in batch.table.key)
    absent_sql = f"NOT EXISTS (SELECT 1 FROM {quoted(dataset, batch.table.name)} AS T WHERE {_same(batch)})"
    lease = quoted(dataset, LEASE)
    retained_sql = "" if retained_from is None else f" AND S.day >= DATE '{retained_from}'"
    return (
        "DECLARE added, leased INT64 DEFAULT 0;\nBEGIN TRANSACTION;\n"
        f"UPDATE {lease} SET holder = '{batch.name}', taken_at = CURRENT_TIMESTAMP() WHERE TRUE;\n"
        "SET leased = @@row_count;\n"
        f"INSERT INTO {quoted(dataset, batch.table.name)} ({names_sql})\n"
        f"SELECT {names_sql} FROM `{staging}` AS S\nWHERE leased > 0 AND {absent_sql}\n"
        f"QUALIFY ROW_NUMBER() OVER (PARTITION BY {keys_sql} ORDER BY S.row_hash) = 1;\n"
        "SET added = @@row_count;\nCOMMIT TRANSACTION;\n"
        f"SELECT added, (SELECT COUNT(*) FROM `{staging}` AS S WHERE {absent_sql}{retained_sql}) AS missing, leased;"
    )


def last_day_expired(expiration_ms: int) -> str:
    """Return the query for the last day whose partition has expired, by the service's clock."""
    return f"SELECT DATE(TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL {expiration_ms} MILLISECOND)) AS day"


def existing_keys(dataset: str, batch: Batch) -> str:
    """Return the query for the keys of a batch's runs in an append-only table. Takes the parameter @runs."""
    first_day, last_day = batch.contents().days
    return (
        f"SELECT {', '.join(batch.table.key)} FROM {quoted(dataset, batch.table.name + APPENDED)}\n"
        f"WHERE day BETWEEN DATE '{first_day}' AND DATE '{last_day}' AND run_id IN UNNEST(@runs)"
    )


def missing_lines(batch: Batch, existing: set[tuple[object, ...]]) -> list[str]:
    """Return the lines of a batch whose keys do not exist yet, one per key."""
    known_keys, missing_columns = set(existing), []
    for line, values in zip(batch.lines(), batch.values(), strict=True):
        key = tuple(values.get(name) for name in batch.table.key)
        if key not in known_keys:
            known_keys.add(key)
            missing_columns.append(line)
    return missing_columns


def _same(batch: Batch) -> str:
    """Return the join condition of table and batch: equal keys, within the batch's days."""
    first_day, last_day = batch.contents().days
    pairs = [_pair(batch.table.column(name)) for name in batch.table.key]
    return f"T.day BETWEEN DATE '{first_day}' AND DATE '{last_day}' AND {' AND '.join(pairs)}"


def _pair(column: TableColumn) -> str:
    """Return the condition that a key column is equal in both; NULL, possible only for numbers, equals NULL."""
    name = column.name
    if column.mode is ColumnMode.REQUIRED:
        return f"T.{name} = S.{name}"
    return f"IFNULL(T.{name}, {NO_NUMBER}) = IFNULL(S.{name}, {NO_NUMBER})"


def minimum_roles(project: str, dataset: str, *, append_only: bool) -> str:
    """Return the commands that grant the minimum roles to a dataset's uploader and readers.

    An append-only dataset has no staging dataset and needs no role for one.
    """
    if append_only:
        changed_datasets, uploader_title = [dataset], "append rows to this one dataset"
    else:
        changed_datasets, uploader_title = (
            [dataset, f"{dataset}_staging"],
            "change rows in the dataset and its staging tables",
        )
    grants_text = "\n".join(
        GRANT_EDITOR.format(project=project, dataset=changed_dataset) for changed_dataset in changed_datasets
    )
    return ROLES.format(project=project, dataset=dataset, uploader=uploader_title, grants=grants_text)
