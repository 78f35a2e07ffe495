"""The connection check before the first request reports an address that does not respond within seconds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from unittest.mock import Mock

import pytest

from keras_matrix.uploader import errors
from keras_matrix.uploader.bigquery import client
from keras_matrix.uploader.bigquery.client import check, check_emulator, check_google
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.errors import BadInput, Unreachable
from tests.golden import Golden
from tests.messages import check_messages, refusal

SHORT_S = 0.2


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process on the host without a proxy, wherever the tests run."""
    monkeypatch.setattr(errors, "in_container", lambda: False)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def listening(serve: Callable[[socket.socket], None] = lambda connection: None) -> Iterator[int]:
    """Yield a port of the loopback that serves one connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(5)

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def closed_port() -> int:
    """Return a port of the loopback on which nothing listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def answer(connection: socket.socket) -> None:
    """Respond to one request like an emulator to an unknown path."""
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def hang_up(connection: socket.socket) -> None:
    """Close the connection after a request, without a response."""
    connection.recv(4096)


@pytest.mark.parametrize("serve", [answer, hang_up])
def test_emulator_that_responds_at_all_is_reachable(serve: Callable[[socket.socket], None]) -> None:
    with listening(serve) as port:
        check_emulator(f"http://127.0.0.1:{port}", 5)


def test_emulator_that_never_responds_times_out() -> None:
    ended = threading.Event()
    with listening(lambda connection: bool(ended.wait(5)) and None) as port:
        started_s = time.monotonic()
        with pytest.raises(Unreachable, match=r"no response within 0\.2 s; start it with"):
            check_emulator(f"http://127.0.0.1:{port}", SHORT_S)
        ended.set()
        assert time.monotonic() - started_s < 5


def test_name_resolution_that_never_ends_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: ended.wait(5) and [])
    try:
        with pytest.raises(Unreachable, match=r"the name is not resolved within 0\.3 s"):
            check_emulator("http://bigquery:9050", SHORT_S)
    finally:
        ended.set()


def test_name_with_many_addresses_that_all_drop_packets_is_reported_as_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a firewall drops packets, each address of BigQuery's host name takes the full timeout."""
    ended = threading.Event()

    def connect(*given: object) -> None:
        ended.wait(5)
        raise TimeoutError

    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: [])
    monkeypatch.setattr(socket, "create_connection", connect)
    try:
        with pytest.raises(Unreachable, match=r"bigquery\.googleapis\.com, port 443: no response within 0\.3 s"):
            check_google(SHORT_S)
    finally:
        ended.set()


@pytest.mark.fault("F40", mutation="messages have the address as it was given")
@pytest.mark.parametrize("address", ["http://{}127.0.0.1:{}", "http://{}", "ftp://{}x:1", "{}x:{}"])
def test_no_message_about_an_emulator_repeats_a_password(address: str) -> None:
    with pytest.raises((Unreachable, BadInput)) as raised:
        check_emulator(address.format("me:s3cret@", closed_port()))
    assert "s3cret" not in str(raised.value)


def unknown_name(*given: object, **named: object) -> object:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_proxy_is_checked_instead_of_bigquery(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with listening() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}127.0.0.1:{port}")
        check_google()


def test_emulator_is_checked_if_configured_and_bigquery_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(client, "check_emulator", calls.append)
    monkeypatch.setattr(client, "check_google", lambda: calls.append("Google"))
    for address in ("http://127.0.0.1:9050", ""):
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", address)
        check()
    assert calls == ["http://127.0.0.1:9050", "Google"]


def test_query_of_a_missing_emulator_exits_with_3_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", f"http://127.0.0.1:{closed_port()}")
    assert main(["query", "--to", "bigquery://emulated-project.benchmarks", "SELECT 1 AS one"]) == 3
    output = capsys.readouterr().err
    assert output.startswith("uploader: BIGQUERY_EMULATOR_HOST: no emulator responds at http://127.0.0.1:")
    assert output.count("\n") == 1


def test_connection_timeout_is_the_documented_15_seconds() -> None:
    assert 1.5 * client.LIMIT_S <= 15


def test_query_through_a_proxy_that_is_not_a_url_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@proxy:99999")
    monkeypatch.setattr(
        "keras_matrix.uploader.bigquery.client.client", lambda project, options, deadline: Mock(project=project)
    )
    assert main(["query", "--to", "bigquery://some-project.benchmarks", "SELECT 1 AS one"]) == 2
    output = capsys.readouterr().err
    assert output == "uploader: HTTPS_PROXY: must be a URL such as http://proxy:3128, got 'http://proxy:99999'\n"


def of_google(monkeypatch: pytest.MonkeyPatch, *, proxy: str | None = None) -> list[str]:
    with monkeypatch.context() as patch:
        if proxy is not None:
            patch.setenv("HTTPS_PROXY", proxy)
        return refusal((Unreachable, BadInput), check_google)


def of_emulator(address: str) -> list[str]:
    return refusal((Unreachable, BadInput), lambda: check_emulator(address))


def test_every_failed_check_has_its_message_with_advice(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """On the host and in a container; no message repeats the password of an address."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    port, found = closed_port(), dict[str, list[str]]()
    for place in ("in a container", "on the host"):
        monkeypatch.setattr(errors, "in_container", lambda place=place: place == "in a container")
        for scheme, name in (("http", "127.0.0.1"), ("http", "localhost"), ("https", "127.0.0.1")):
            found[f"{scheme}://{name}, where nothing listens, {place}"] = of_emulator(f"{scheme}://{name}:{port}")
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", unknown_name)
            found[f"an unknown name, {place}"] = of_emulator("http://bigquery:9050")
            found[f"no network, {place}"] = of_google(monkeypatch)
    for address in ("bigquery:9050", "127.0.0.1", "ftp://x:1", "http://", "http://x:y", "http://[::1"):
        found[f"the emulator's address {address}"] = of_emulator(address)
    found["a proxy where nothing listens"] = of_google(monkeypatch, proxy=f"http://127.0.0.1:{port}")
    for proxy in ("http://me:s3cret@proxy:99999", "me:s3cret@proxy:x", "http://:3128", "http://[::1"):
        found[f"the proxy {proxy}"] = of_google(monkeypatch, proxy=proxy)
    assert "s3cret" not in str([*found.values()])
    hidden = {title: [line.replace(str(port), "PORT") for line in lines] for title, lines in found.items()}
    check_messages(golden, "connection.txt", hidden)
