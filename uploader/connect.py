"""A client of BigQuery: whose credentials it has, and how an emulator is told from Google."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from uploader import reachable, refusals
from uploader.bigquery import BigQueryWarehouse
from uploader.errors import BadInput
from uploader.reachable import EMULATOR
from uploader.retry import Patience
from uploader.warehouse import Options

if TYPE_CHECKING:
    from google.cloud import bigquery

SCOPES = ("https://www.googleapis.com/auth/bigquery",)


def connect(project: str, dataset: str, options: Options, patience: Patience | None = None) -> BigQueryWarehouse:
    """Return a dataset of a project. Raises `BadInput` without the libraries, `NotAllowed` without credentials."""
    return BigQueryWarehouse(client(project, options), dataset, options, patience or Patience(), reachable.check)


def client(project: str, options: Options) -> bigquery.Client:
    """Return a client; where BIGQUERY_EMULATOR_HOST names an emulator, one that asks it and needs no credentials."""
    try:
        from google.cloud import bigquery
    except ImportError as error:
        raise BadInput(
            "--to: BigQuery needs its client library: pip install 'keras-benchmark-matrix[bigquery]' (as the extra of "
            "however this program was installed)"
        ) from error
    try:
        return bigquery.Client(project, credentials=_credentials(options), location=options.location)
    except refusals.kinds() as error:
        raise refusals.explained(f"connect to project {project}", error) from None


def _credentials(options: Options) -> Any:
    """Return anonymous credentials for an emulator, else Application Default ones, impersonating where asked."""
    from google.auth import credentials, default, exceptions, impersonated_credentials

    if os.environ.get(EMULATOR):
        return credentials.AnonymousCredentials()
    try:
        found, _ = default(scopes=SCOPES)
    except (AttributeError, KeyError, TypeError):  # what google-auth makes of a file that is JSON and no credentials
        raise exceptions.DefaultCredentialsError("The file that holds them is JSON, but no credentials.") from None
    if options.impersonate is None:
        return found
    return impersonated_credentials.Credentials(found, options.impersonate, SCOPES)
