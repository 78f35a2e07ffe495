"""The minimum IAM roles for uploading and for reading, as commands that grant them."""

from __future__ import annotations

TEMPLATE = """minimum roles, as commands of the Google Cloud CLI (UPLOADER and READER are service accounts or users):

  # the uploader: run jobs in the project, {uploader}
  gcloud projects add-iam-policy-binding {project} --member=UPLOADER --role=roles/bigquery.jobUser
{grants}

  # dashboards: run jobs, read this one dataset; cap each query with maximum_bytes_billed
  gcloud projects add-iam-policy-binding {project} --member=READER --role=roles/bigquery.jobUser
  bq query --use_legacy_sql=false \\
    'GRANT `roles/bigquery.dataViewer` ON SCHEMA `{project}`.{dataset} TO "READER"'

  # only `uploader init` creates datasets and needs, once: roles/bigquery.user on the project"""


GRANT = """  bq query --use_legacy_sql=false \\
    'GRANT `roles/bigquery.dataEditor` ON SCHEMA `{project}`.{dataset} TO "UPLOADER"'"""


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
        GRANT.format(project=project, dataset=changed_dataset) for changed_dataset in changed_datasets
    )
    return TEMPLATE.format(project=project, dataset=dataset, uploader=uploader_title, grants=grants_text)
