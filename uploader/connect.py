"""A client of BigQuery: whose credentials it has, and how an emulator is told from Google."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from uploader import reachable, refusals
from uploader.bigquery import BigQueryWarehouse
from uploader.errors import BadInput
from uploader.jobs import REQUEST_S, Jobs
from uploader.reachable import EMULATOR
from uploader.retry import Deadline, Patience
from uploader.warehouse import Options

if TYPE_CHECKING:
    from google.cloud import bigquery

SCOPES = ("https://www.googleapis.com/auth/bigquery",)


def connect(project: str, dataset: str, options: Options, patience: Patience | None = None) -> BigQueryWarehouse:
    """Return a dataset of a project. Raises `BadInput` without the libraries, `NotAllowed` without credentials."""
    deadline = Deadline(options.deadline_s)
    jobs = Jobs(client(project, options, deadline), patience or Patience(), deadline, reachable.check)
    return BigQueryWarehouse(jobs, dataset, options)


def client(project: str, options: Options, deadline: Deadline) -> bigquery.Client:
    """Return a client; where BIGQUERY_EMULATOR_HOST names an emulator, one that asks it and needs no credentials.

    No request of it lasts longer than the deadline leaves, whatever the client's own limit is: it waits for the rows of
    a query for 120 s at least.
    """
    try:
        from google.cloud import bigquery
    except ImportError as error:
        raise BadInput(
            "--to: BigQuery needs its client library: pip install 'keras-benchmark-matrix[bigquery]' (as the extra of "
            "however this program was installed)"
        ) from error
    try:
        found = _credentials(options)
        return bigquery.Client(project, credentials=found, location=options.location, _http=_session(found, deadline))
    except refusals.kinds() as error:
        raise refusals.explained(f"connect to project {project}", error) from None


def _session(found: Any, deadline: Deadline) -> Any:
    """Return a session with these credentials whose requests, those for a token included, end with the deadline."""
    from google.auth.transport.requests import AuthorizedSession, Request
    from requests import Session
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        """Shortens the time limit of each request to what the deadline leaves."""

        def send(self, request: Any, stream: bool = False, timeout: Any = None, *args: Any, **given: Any) -> Any:
            connect, answer = timeout if isinstance(timeout, tuple) else (timeout, timeout)
            limits = deadline.left_s(connect or REQUEST_S), deadline.left_s(answer or REQUEST_S)
            return super().send(request, stream, limits, *args, **given)

    tokens = Session()
    session = AuthorizedSession(found, auth_request=Request(tokens))
    for scheme in ("https://", "http://"):
        session.mount(scheme, Limited())
        tokens.mount(scheme, Limited())
    return session


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
