"""Creates BigQuery clients: with the user's credentials, or anonymous for an emulator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from keras_matrix.uploader.bigquery import connection_check, error_mapping
from keras_matrix.uploader.bigquery.connection_check import EMULATOR
from keras_matrix.uploader.bigquery.error_mapping import Deadline, RetryPolicy
from keras_matrix.uploader.bigquery.jobs import REQUEST_S, Jobs
from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.warehouse import Options

if TYPE_CHECKING:
    from google.cloud import bigquery

SCOPES = ("https://www.googleapis.com/auth/bigquery",)


def connect(project: str, dataset: str, options: Options, policy: RetryPolicy | None = None) -> BigQueryWarehouse:
    """Open a dataset of a project. Raises `BadInput` without the libraries, `NotAllowed` without credentials."""
    deadline = Deadline(options.deadline_s)
    jobs = Jobs(client(project, options, deadline), policy or RetryPolicy(), deadline, connection_check.check)
    return BigQueryWarehouse(jobs, dataset, options)


def client(project: str, options: Options, deadline: Deadline) -> bigquery.Client:
    """Return a client; if BIGQUERY_EMULATOR_HOST names an emulator, an anonymous one of the emulator.

    The deadline limits each of its requests, also where the library sets a longer timeout: for a query's rows it is at
    least 120 s.
    """
    try:
        from google.cloud import bigquery
    except ImportError as error:
        raise BadInput(
            "--to: BigQuery needs its client library: pip install 'keras-matrix[bigquery]' (or the extra "
            "`bigquery` of the way this program was installed)"
        ) from error
    try:
        found = _credentials(options)
        return bigquery.Client(project, credentials=found, location=options.location, _http=_session(found, deadline))
    except error_mapping.client_errors() as error:
        raise error_mapping.to_upload_error(f"connect to project {project}", error) from None


def _session(found: Any, deadline: Deadline) -> Any:
    """Return a session with these credentials; the deadline limits its requests, including those for tokens."""
    from google.auth.transport.requests import AuthorizedSession, Request
    from requests import Session
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        """Limits the timeout of each request to the time until the deadline."""

        def send(self, request: Any, stream: bool = False, timeout: Any = None, *args: Any, **given: Any) -> Any:
            connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
            limits = deadline.left_s(connect or REQUEST_S), deadline.left_s(read or REQUEST_S)
            return super().send(request, stream, limits, *args, **given)

    tokens = Session()
    session = AuthorizedSession(found, auth_request=Request(tokens))
    for scheme in ("https://", "http://"):
        session.mount(scheme, Limited())
        tokens.mount(scheme, Limited())
    return session


def _credentials(options: Options) -> Any:
    """Return anonymous credentials for an emulator, else Application Default Credentials, impersonated if requested."""
    from google.auth import credentials, default, exceptions, impersonated_credentials

    if os.environ.get(EMULATOR):
        return credentials.AnonymousCredentials()
    try:
        found, _ = default(scopes=SCOPES)
    except (AttributeError, KeyError, TypeError):  # raised by google-auth for a JSON file without credentials
        raise exceptions.DefaultCredentialsError("The file is JSON, but contains no credentials.") from None
    if options.impersonate is None:
        return found
    return impersonated_credentials.Credentials(found, options.impersonate, SCOPES)
