"""The least rights that uploading and reading need, as commands that give them."""

from __future__ import annotations

TEMPLATE = """least rights, as commands of the Google Cloud CLI (UPLOADER and READER are service accounts or people):

  # the uploader: run jobs in the project, {uploader}
  gcloud projects add-iam-policy-binding {project} --member=UPLOADER --role=roles/bigquery.jobUser
{grants}

  # dashboards: run jobs, read this one dataset; cap each query with maximum_bytes_billed
  gcloud projects add-iam-policy-binding {project} --member=READER --role=roles/bigquery.jobUser
  bq query --use_legacy_sql=false \\
    'GRANT `roles/bigquery.dataViewer` ON SCHEMA `{project}`.{dataset} TO "READER"'

  # only `uploader init` makes the dataset itself: roles/bigquery.user on the project, once"""


GRANT = """  bq query --use_legacy_sql=false \\
    'GRANT `roles/bigquery.dataEditor` ON SCHEMA `{project}`.{dataset} TO "UPLOADER"'"""


def least_rights(project: str, dataset: str, *, append_only: bool) -> str:
    """Return the commands that give the rights a dataset's uploader and its readers need.

    Only the uploader of a dataset with DML needs the dataset of staging tables, which an append-only one does not have.
    """
    if append_only:
        changed, uploader = [dataset], "append rows to this one dataset"
    else:
        changed, uploader = [dataset, f"{dataset}_staging"], "change rows in the dataset and its staging tables"
    grants = "\n".join(GRANT.format(project=project, dataset=one) for one in changed)
    return TEMPLATE.format(project=project, dataset=dataset, uploader=uploader, grants=grants)
