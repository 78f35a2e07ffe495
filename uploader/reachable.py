"""Whether anything answers where BigQuery or an emulator should be: known within seconds, before the first request.

Google's client alone takes minutes: a token is asked for four times with 120 s each, a request for six times with 60 s.
Not known here: whether what answers is BigQuery, and whether it lets us in; the first request finds out.
"""

from __future__ import annotations

import os
import queue
import re
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from urllib.parse import SplitResult, urlsplit

from uploader import process
from uploader.errors import BadInput, Unreachable

EMULATOR = "BIGQUERY_EMULATOR_HOST"
GOOGLE = "https://bigquery.googleapis.com"
SERVICE = "bigquery"  # the emulator's name among the services of compose.yaml
LIMIT_S = 10.0
PORTS = {"http": 80, "https": 443}
LOOPBACK = ("localhost", "127.", "::1")
USER = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?.*@")  # a user and a password before a host


def check() -> None:
    """Raise `Unreachable` if nothing answers at the emulator's address or, without one, at BigQuery's."""
    if address := os.environ.get(EMULATOR):
        check_emulator(address)
    else:
        check_google()


def check_emulator(address: str, limit_s: float = LIMIT_S) -> None:
    """Raise `BadInput` for an address that is no URL, `Unreachable` if nothing answers there in time."""
    split = _split(address)
    if split is None or split.scheme not in PORTS:
        raise BadInput(f"{EMULATOR}: must be a URL such as http://127.0.0.1:9050, got {_shown(address)!r}")
    if why := _failure(split, _answered, limit_s):
        where = _shown(address)
        raise Unreachable(f"{EMULATOR}: no emulator answers at {where}: {why}; {_advice(split.hostname or '')}")


def check_google(limit_s: float = LIMIT_S) -> None:
    """Raise `Unreachable` if no connection to BigQuery, or to the proxy that leads there, can be made in time.

    Raises `BadInput` for a proxy that is no URL.
    """
    from requests import utils

    proxy = utils.select_proxy(GOOGLE, utils.get_environ_proxies(GOOGLE))
    address = proxy or GOOGLE
    split = _split(address if "://" in address else f"http://{address}")
    if split is None:
        raise BadInput(f"HTTPS_PROXY: must be a URL such as http://proxy:3128, got {_shown(address)!r}")
    if why := _failure(split, _connected, limit_s):
        what = f"the proxy {split.hostname}" if proxy else str(split.hostname)
        where = "the container's network (not network_mode: none)" if process.in_container() else "the network"
        raise Unreachable(
            f"no connection to {what}, port {_port(split)}: {why}; check {where}, its name service and HTTPS_PROXY, "
            "then run this again: nothing is lost"
        )


def _split(address: str) -> SplitResult | None:
    """Return the parts of an address; None if it has no host, or a port that is no number."""
    try:
        split = urlsplit(address)
        return split if split.hostname and _port(split) else None
    except ValueError:
        return None


def _shown(address: str) -> str:
    """Return an address without the user and the password that it may hold."""
    return USER.sub(r"\1", address)


def _port(split: SplitResult) -> int:
    return split.port or PORTS.get(split.scheme, 80)


def _advice(host: str) -> str:
    """Return what to do about an emulator that does not answer; in a container and outside it has two addresses."""
    start = f"start it with: docker compose --profile {SERVICE} up --wait {SERVICE}"
    if process.in_container() and host.startswith(LOOPBACK):
        return (
            f"in a container {host} is the container itself: set {EMULATOR}=http://{SERVICE}:9050 for the emulator "
            "service of compose.yaml"
        )
    if host == SERVICE and not process.in_container():
        return f"outside of a container that service is at {EMULATOR}=http://127.0.0.1:9050; {start}"
    return f"{start}; or unset {EMULATOR} for BigQuery itself"


def _failure(split: SplitResult, ask: Callable[[SplitResult, float], None], limit_s: float) -> str | None:
    """Return why a question fails, None if it is answered.

    It has a thread, since the name service knows no time limit, and a name may have many addresses with one each.
    """
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    resolved = threading.Event()

    def run() -> None:
        try:
            socket.getaddrinfo(split.hostname, _port(split), type=socket.SOCK_STREAM)
            resolved.set()
            ask(split, limit_s)
        except TimeoutError:
            found.put(f"no answer within {limit_s:g} s")
        except OSError as error:
            found.put(error.strerror or str(error))
        except ValueError as error:  # what the name service's encoding makes of a host that is no name
            found.put(str(error))
        else:
            found.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        return found.get(timeout=1.5 * limit_s)
    except queue.Empty:
        return f"{'no answer' if resolved.is_set() else 'the name is not resolved'} within {1.5 * limit_s:g} s"


def _connected(split: SplitResult, limit_s: float) -> None:
    socket.create_connection((split.hostname, _port(split)), limit_s).close()


def _answered(split: SplitResult, limit_s: float) -> None:
    """Ask for the front page. Any answer will do, and a connection that is closed is one, too: something is there."""
    if split.scheme == "https":
        _connected(split, limit_s)
        return
    with closing(HTTPConnection(split.hostname or "", _port(split), timeout=limit_s)) as connection:
        connection.connect()
        try:
            connection.request("GET", "/")
            connection.getresponse()
        except (HTTPException, ConnectionError):
            return
