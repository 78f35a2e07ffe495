"""The host names, origins and methods that the live dashboard answers, and the addresses on which it may listen."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.dashboards.live.app.guard import SAFE_HEADERS, Guard, StartResponse
from keras_matrix.dashboards.live.app.hosts import ListenAddress, address, listen_address
from keras_matrix.dashboards.live.app.serve import port_of
from tests.golden import Golden
from tests.messages import check_messages, refusal


def page(environ: Any, start_response: StartResponse) -> Iterable[bytes]:
    """A page of five bytes for any request."""
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]


def ask(where: ListenAddress, host: str | None, method: str = "GET", **marks: str) -> tuple[str, dict[str, str], bytes]:
    """Return status, headers and body of the answer to one request; `marks` are further headers."""
    sent: list[Any] = []
    environ = {"PATH_INFO": "/", "REQUEST_METHOD": method} | ({} if host is None else {"HTTP_HOST": host}) | marks
    body = b"".join(Guard(page, where)(environ, lambda status, headers: sent.extend((status, dict(headers)))))
    return sent[0], sent[1], body


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9000", "localhost.:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]", "[0:0::1]:8080"]
)
def test_names_of_the_loopback_are_always_accepted_with_any_port(host: str) -> None:
    for where in (listen_address("127.0.0.1:8080", []), listen_address("0.0.0.0:80", ["bench.example.org"])):
        assert ask(where, host)[0] == "200 OK"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "evil.example@localhost",
        "0.0.0.0:8080",
        "[::]:8080",
        "192.168.1.7",
        "localhost:80:80",
        "localhost:port",
        "::1",
        "[::1",
        "[localhost]",
        "local host",
        "",
        None,
    ],
)
def test_a_request_under_another_host_name_is_refused(host: str | None) -> None:
    status, headers, body = ask(listen_address("127.0.0.1:8080", []), host)
    assert status == "421 Misdirected Request"
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Content-Length"] == str(len(body))
    text = f"This dashboard does not answer under the host name {host or ''!r}: open it by its own address, or start it"
    assert body.decode().startswith(text)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "TRACE"])
def test_unknown_host_name_is_refused_for_every_method(method: str) -> None:
    assert ask(ListenAddress("127.0.0.1", 80), "evil.example", method)[0] == "421 Misdirected Request"


@pytest.mark.parametrize(
    "marks",
    [
        {"HTTP_ORIGIN": "https://evil.example"},
        {"HTTP_ORIGIN": "http://localhost:9000"},
        {"HTTP_ORIGIN": "http://localhost:8080.evil.example"},
        {"HTTP_ORIGIN": "null"},
        {"HTTP_ORIGIN": ""},
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "cors", "HTTP_SEC_FETCH_DEST": "empty"},
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "no-cors", "HTTP_SEC_FETCH_DEST": "image"},
        {"HTTP_SEC_FETCH_SITE": "same-site", "HTTP_SEC_FETCH_MODE": "no-cors", "HTTP_SEC_FETCH_DEST": "script"},
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate", "HTTP_SEC_FETCH_DEST": "iframe"},
    ],
)
def test_request_by_a_page_of_another_site_is_refused(marks: dict[str, str]) -> None:
    """Also under a name that is accepted, and by pages of other ports of this machine.

    Mutation: `_is_of_another_site` reads only Origin, or compares it without the port.
    """
    where = listen_address("0.0.0.0:8080", ["bench.example.org"])
    status, headers, body = ask(where, "localhost:8080", **marks)
    assert (status, headers["Content-Type"]) == ("403 Forbidden", "text/plain; charset=utf-8")
    assert body.startswith(b"This dashboard does not answer requests by pages of other sites: ")


@pytest.mark.parametrize(
    "marks",
    [
        {"HTTP_ORIGIN": "http://localhost:8080"},
        {"HTTP_SEC_FETCH_SITE": "none", "HTTP_SEC_FETCH_MODE": "navigate", "HTTP_SEC_FETCH_DEST": "document"},
        {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_SEC_FETCH_MODE": "cors", "HTTP_SEC_FETCH_DEST": "empty"},
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate", "HTTP_SEC_FETCH_DEST": "document"},
    ],
)
def test_own_pages_and_links_of_other_sites_are_answered(marks: dict[str, str]) -> None:
    assert ask(listen_address("127.0.0.1:8080", []), "localhost:8080", **marks)[0] == "200 OK"


@pytest.mark.parametrize(("host", "method"), [("evil.example", "GET"), ("localhost", "POST")])
def test_refusals_forbid_caching_sniffing_framing_and_referrers(host: str, method: str) -> None:
    """Mutation: `_refused` without SAFE_HEADERS."""
    assert set(SAFE_HEADERS) <= set(ask(ListenAddress("127.0.0.1", 80), host, method)[1].items())


def test_listen_address_and_public_names_are_accepted() -> None:
    where = listen_address("192.168.1.7:8080", ["Bench.Example.org", "fd00::7"])
    for host in ("192.168.1.7:8080", "bench.example.org", "BENCH.example.org.:443", "[fd00:0::7]:8080"):
        assert ask(where, host)[0] == "200 OK"
    assert ask(where, "bench.example.com")[0] == "421 Misdirected Request"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get"])
def test_a_method_other_than_get_and_head_is_refused(method: str) -> None:
    status, headers, body = ask(ListenAddress("127.0.0.1", 80), "localhost", method)
    assert (status, headers["Allow"]) == ("405 Method Not Allowed", "GET, HEAD")
    assert body.decode() == f"This dashboard only reads: use GET or HEAD, got {method!r}.\n"


def test_head_is_answered_with_the_headers_of_get_and_no_body() -> None:
    where = ListenAddress("127.0.0.1", 80)
    assert ask(where, "localhost") == ("200 OK", {"Content-Length": "5"}, b"hello")
    assert ask(where, "localhost", "HEAD") == ("200 OK", {"Content-Length": "5"}, b"")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:8080", "127.7.7.7:80", "[::1]:8080", "::1:8080"])
def test_listening_on_the_loopback_needs_no_name(listen: str) -> None:
    assert listen_address(listen, []).names == frozenset()


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "192.168.1.7:80", "bench.example.org:80"])
def test_listening_elsewhere_without_a_public_name_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="--listen"):
        listen_address(listen, [])
    assert "bench" in listen_address(listen, ["bench"]).names


def test_wildcard_address_is_not_an_accepted_name() -> None:
    assert listen_address("0.0.0.0:80", ["bench"]).names == {"bench"}
    assert listen_address("192.168.1.7:80", ["bench"]).names == {"bench", "192.168.1.7"}


def test_an_address_is_a_host_and_a_port() -> None:
    assert address("127.0.0.1:8080") == ("127.0.0.1", 8080)
    assert address("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:0", "http://127.0.0.1:81/"),
        ("[::1]:0", "http://[::1]:81/"),
        ("0.0.0.0:0", "http://127.0.0.1:81/"),
        ("[::]:0", "http://127.0.0.1:81/"),
        ("bench:0", "http://bench:81/"),
    ],
)
def test_printed_url_has_an_accepted_host(listen: str, url: str) -> None:
    where = listen_address(listen, ["bench"])
    assert where.url(81) == url
    assert where.accepts(url.split("/")[2])


def test_port_of_a_server_with_two_sockets_is_the_first_ones() -> None:
    assert port_of(SimpleNamespace(effective_port=8080)) == 8080
    assert port_of(SimpleNamespace(effective_listen=[("127.0.0.1", 8081), ("::1", 8082)])) == 8081


def test_every_address_and_name_that_is_refused_has_its_message(golden: Golden) -> None:
    addresses = ("8080", "localhost:99999", "a b:1", "[::1]", "[host]:80", "")
    names = ("http://bench", "bench:8080", "*", "", "0.0.0.0", "[::]", "a b", "bench/x")
    messages = {f"--listen {text!r}": refusal(ValueError, partial(address, text)) for text in addresses}
    messages |= {
        f"--public {name!r}": refusal(ValueError, partial(listen_address, "0.0.0.0:80", [name])) for name in names
    }
    messages["--listen 0.0.0.0:8080, no --public"] = refusal(ValueError, partial(listen_address, "0.0.0.0:8080", []))
    check_messages(golden, "hosts.txt", messages)
