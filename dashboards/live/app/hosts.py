"""The address on which the live dashboard listens, and the host names under which it answers.

A web page of an attacker can resolve its own host name to 127.0.0.1 and then read the answers of a server there (DNS
rebinding). The Host header reveals this, as it names that page's host. The dashboard therefore answers only under known
names, and access from other machines needs an explicit list of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

HOST_HEADER = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::[0-9]{1,5})?")
LISTEN = re.compile(r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9_.:-]+)):(?P<port>[0-9]{1,5})")
LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen on, and the host names that are accepted in addition to those of the loopback."""

    host: str
    port: int
    names: frozenset[str] = frozenset()

    def url(self, port: int) -> str:
        """Return the URL to open on this machine; a wildcard is replaced, since no request may name it as its host."""
        host = "127.0.0.1" if _is_wildcard(_normal(self.host)) else self.host
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def accepts(self, header: str) -> bool:
        """Return whether a request with this Host header, with any port, is answered."""
        match = HOST_HEADER.fullmatch(header)
        if match is None:
            return False
        name = _normal(match["name"])
        return _is_loopback(name) or name in self.names


def listen_address(listen: str, public: Sequence[str]) -> ListenAddress:
    """Parse HOST:PORT and the names of `--public`. Raises ValueError, whose message begins with the flag."""
    try:
        host, port = address(listen)
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from error
    names = frozenset(map(_public_name, public))
    if _is_loopback(_normal(host)):
        return ListenAddress(host, port, names)
    if not names:
        raise ValueError(
            f"--listen: {listen} is open to other machines: add --public NAME..., the host names by which they reach "
            f"the dashboard, such as --public bench.example.org, or listen on 127.0.0.1:{port}"
        )
    return ListenAddress(host, port, names if _is_wildcard(host) else names | {_normal(host)})


def address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT; an IPv6 address may be in brackets. Raises ValueError."""
    match = LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"must be HOST:PORT, got {text!r}")
    return match["bracketed"] or match["host"], int(match["port"])


def _public_name(text: str) -> str:
    bracketed = f"[{text}]" if ":" in text and not text.startswith("[") else text
    match = HOST_HEADER.fullmatch(bracketed)
    if match is None or match["name"] != bracketed or _is_wildcard(_normal(bracketed)):
        raise ValueError(
            f"--public: must be a host name or an address, without scheme and port, such as bench.example.org, "
            f"got {text!r}"
        )
    return _normal(bracketed)


def _normal(name: str) -> str:
    """Return a name in the form in which names are compared."""
    name = name.strip("[]").lower().removesuffix(".")
    parsed = _address(name)
    return name if parsed is None else str(parsed)


def _is_loopback(name: str) -> bool:
    parsed = _address(name)
    return name == LOCALHOST if parsed is None else parsed.is_loopback


def _is_wildcard(name: str) -> bool:
    parsed = _address(name)
    return parsed is not None and parsed.is_unspecified


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
