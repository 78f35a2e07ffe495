"""Creates BigQuery clients, with the user's credentials or anonymous for an emulator, and checks the connection first.

Google's client alone takes minutes to fail: a token is requested four times with 120 s each, and a request is sent six
times with 60 s each. Identity of the server and credentials are not checked here; the first request does.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from keras_matrix.records.host.inherited_environment import without_user
from keras_matrix.uploader import errors
from keras_matrix.uploader.bigquery import error_mapping
from keras_matrix.uploader.bigquery.jobs import REQUEST_S, Deadline, Jobs, RetryPolicy
from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse
from keras_matrix.uploader.errors import BadInput, Unreachable
from keras_matrix.uploader.warehouse import Options

if TYPE_CHECKING:
    from google.cloud import bigquery

SCOPES = ("https://www.googleapis.com/auth/bigquery",)
EMULATOR = "BIGQUERY_EMULATOR_HOST"
GOOGLE = "https://bigquery.googleapis.com"
SERVICE = "bigquery"  # the emulator's service name in compose.yaml
LIMIT_S = 10.0
PORTS = {"http": 80, "https": 443}
LOOPBACK = ("localhost", "127.", "::1")


def connect(project: str, dataset: str, options: Options, policy: RetryPolicy | None = None) -> BigQueryWarehouse:
    """Open a dataset of a project. Raises `BadInput` without the libraries, `NotAllowed` without credentials."""
    deadline = Deadline(options.deadline_s)
    jobs = Jobs(client(project, options, deadline), policy or RetryPolicy(), deadline, check)
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
        credentials = _credentials(options)
        return bigquery.Client(
            project, credentials=credentials, location=options.location, _http=_session(credentials, deadline)
        )
    except error_mapping.client_errors() as error:
        raise error_mapping.to_upload_error(f"connect to project {project}", error) from None


def _session(credentials: Any, deadline: Deadline) -> Any:
    """Return a session with these credentials; the deadline limits its requests, including those for tokens."""
    from google.auth.transport.requests import AuthorizedSession, Request
    from requests import Session
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        """Limits the timeout of each request to the time until the deadline."""

        def send(self, request: Any, stream: bool = False, timeout: Any = None, *args: Any, **options: Any) -> Any:
            connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
            limits = deadline.left_s(connect or REQUEST_S), deadline.left_s(read or REQUEST_S)
            return super().send(request, stream, limits, *args, **options)

    tokens = Session()
    session = AuthorizedSession(credentials, auth_request=Request(tokens))
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
        default_credentials, _ = default(scopes=SCOPES)
    except (AttributeError, KeyError, TypeError):  # raised by google-auth for a JSON file without credentials
        raise exceptions.DefaultCredentialsError("The file is JSON, but contains no credentials.") from None
    if options.impersonate is None:
        return default_credentials
    return impersonated_credentials.Credentials(default_credentials, options.impersonate, SCOPES)


def check() -> None:
    """Raise `Unreachable` if the emulator, or without one BigQuery, does not respond."""
    if address := os.environ.get(EMULATOR):
        check_emulator(address)
    else:
        check_google()


def check_emulator(address: str, limit_s: float = LIMIT_S) -> None:
    """Raise `BadInput` for an address that is not a URL, `Unreachable` if nothing responds there in time."""
    split, shown_address = _split(address), without_user(address)
    if split is None or split.scheme not in PORTS:
        raise BadInput(f"{EMULATOR}: must be a URL such as http://127.0.0.1:9050, got {shown_address!r}")
    if why := _failure(split, _request, limit_s):
        raise Unreachable(
            f"{EMULATOR}: no emulator responds at {shown_address}: {why}; {_advice(split.hostname or '')}"
        )


def check_google(limit_s: float = LIMIT_S) -> None:
    """Raise `Unreachable` if no connection to BigQuery, or to the configured proxy, succeeds in time.

    Raises `BadInput` for a proxy that is not a URL.
    """
    from requests import utils

    proxy = utils.select_proxy(GOOGLE, utils.get_environ_proxies(GOOGLE))
    address = proxy or GOOGLE
    split = _split(address if "://" in address else f"http://{address}")
    if split is None:
        where = without_user(address)
        raise BadInput(f"HTTPS_PROXY: must be a URL such as http://proxy:3128, got {where!r}")
    if why := _failure(split, _connect, limit_s):
        peer = f"the proxy {split.hostname}" if proxy else str(split.hostname)
        where = "the container's network (not network_mode: none)" if errors.in_container() else "the network"
        raise Unreachable(
            f"no connection to {peer}, port {_port(split)}: {why}; check {where}, DNS and HTTPS_PROXY, then run the "
            "same command again: nothing is lost"
        )


def _split(address: str) -> SplitResult | None:
    """Return the parts of a URL; None if it has no host or an invalid port."""
    try:
        split = urlsplit(address)
        return split if split.hostname and _port(split) else None
    except ValueError:
        return None


def _port(split: SplitResult) -> int:
    return split.port or PORTS.get(split.scheme, 80)


def _advice(host: str) -> str:
    """Return what to do if the emulator does not respond; its address differs inside and outside of containers."""
    start_advice = f"start it with: docker compose --profile {SERVICE} up --wait {SERVICE}"
    if errors.in_container() and host.startswith(LOOPBACK):
        return (
            f"in a container {host} is the container itself: set {EMULATOR}=http://{SERVICE}:9050 for the emulator "
            "service of compose.yaml"
        )
    if host == SERVICE and not errors.in_container():
        return f"on the host, set {EMULATOR}=http://127.0.0.1:9050 for that service; {start_advice}"
    return f"{start_advice}; or unset {EMULATOR} for BigQuery itself"


def _failure(split: SplitResult, connect: Callable[[SplitResult, float], None], limit_s: float) -> str | None:
    """Return why a connection fails, None if it succeeds.

    Runs in a thread, since name resolution has no timeout, and a name may resolve to many addresses with one each.
    """
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    resolved = threading.Event()

    def run() -> None:
        try:
            socket.getaddrinfo(split.hostname, _port(split), type=socket.SOCK_STREAM)
            resolved.set()
            connect(split, limit_s)
        except TimeoutError:
            answers.put(f"no response within {limit_s:g} s")
        except OSError as error:
            answers.put(error.strerror or str(error))
        except ValueError as error:  # the host cannot be encoded as a domain name
            answers.put(str(error))
        else:
            answers.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answers.get(timeout=1.5 * limit_s)
    except queue.Empty:
        return f"{'no response' if resolved.is_set() else 'the name is not resolved'} within {1.5 * limit_s:g} s"


def _connect(split: SplitResult, limit_s: float) -> None:
    socket.create_connection((split.hostname, _port(split)), limit_s).close()


def _request(split: SplitResult, limit_s: float) -> None:
    """Request the path /. Any response counts, also a closed connection: a server is listening."""
    if split.scheme == "https":
        _connect(split, limit_s)
        return
    with closing(HTTPConnection(split.hostname or "", _port(split), timeout=limit_s)) as connection:
        connection.connect()
        try:
            connection.request("GET", "/")
            connection.getresponse()
        except (HTTPException, ConnectionError):
            return
