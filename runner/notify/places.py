"""Where notifications go, and who owns which cells: the texts of the command line, checked.

The error of a notification that could not be sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from keras_matrix.records.host.inherited_environment import without_user
from keras_matrix.runner.errors import InfrastructureError, UsageError

GITHUB, WEBHOOK = "github", "webhook"
FORMS = "github:OWNER/REPO or webhook:URL"
# A login has letters, digits and single hyphens; the name of a repository also dots and underscores.
LOGIN = r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}"
REPOSITORY = re.compile(rf"{LOGIN}/(?!\.{{1,2}}$)[A-Za-z0-9._-]{{1,100}}")
OWNER = re.compile(rf"@{LOGIN}(/[A-Za-z0-9._-]{{1,100}})?")
API, API_VARIABLE = "https://api.github.com", "GITHUB_API_URL"
TOKEN_VARIABLE = "GITHUB_TOKEN"  # noqa: S105 - a name, not a token
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class GitHub:
    """The issues of a repository; `api` is the address of its REST API."""

    repository: str
    api: str

    def __str__(self) -> str:
        return f"{GITHUB}:{self.repository}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that takes a JSON document. Its path may be a secret, so only its host is shown."""

    url: str

    def __str__(self) -> str:
        return f"{WEBHOOK}:{urlsplit(self.url).scheme}://{urlsplit(self.url).hostname}/..."


Place = GitHub | Webhook


@dataclass(frozen=True, slots=True)
class Owner:
    """Who is named in the notifications about the cells that a pattern names."""

    pattern: str
    name: str


def place_of(text: str) -> Place:
    """Return the place that `--notify` names. Raises `UsageError`."""
    kind, _, address = text.partition(":")
    if kind == GITHUB:
        if not REPOSITORY.fullmatch(address):
            raise UsageError(
                f"--notify: must be github:OWNER/REPO, as in github:keras-team/keras, got {without_user(text)[:120]!r}"
            )
        api = os.environ.get(API_VARIABLE) or API
        _check_address(API_VARIABLE, api)
        return GitHub(address, api.rstrip("/"))
    if kind == WEBHOOK:
        _check_address("--notify: webhook", address)
        return Webhook(address)
    # Not the text itself: it may be an address with a secret.
    received_text = f"one that begins with {kind[:20]!r}" if ":" in text else "a text without a colon"
    raise UsageError(f"--notify: must be {FORMS}, got {received_text}")


def owners_of(texts: Sequence[str]) -> tuple[Owner, ...]:
    """Return the owners of `--owner [PATTERN=]@NAME`. Raises `UsageError`."""
    owners = []
    for text in texts:
        pattern, separator, name = text.rpartition("=")
        if not OWNER.fullmatch(name) or (separator and not pattern):
            raise UsageError(
                f"--owner: must be @LOGIN or @ORGANISATION/TEAM, or PATTERN=@LOGIN as in 'jax:*=@alice', got {text!r}"
            )
        owners.append(Owner(pattern or "*", name))
    return tuple(owners)


def owner_of(owners: Sequence[Owner], workload: str, backend: str) -> str | None:
    """Return the owner of a cell: the last whose pattern names it, as in a CODEOWNERS file."""
    names = workload, f"{backend}:{workload}"
    owner_names = [owner.name for owner in owners if any(fnmatchcase(name, owner.pattern) for name in names)]
    return owner_names[-1] if owner_names else None


def token_of(path: Path | None) -> str | None:
    """Return the token of a file, or of GITHUB_TOKEN; None without one. Raises `UsageError` for one that cannot be."""
    source_text, text = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, "")
    if path is not None:
        source_text = f"--token-file: {path}"
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a token: it has other characters than ASCII"
            raise UsageError(f"{source_text}: {reason}") from None
    token = text.strip()
    if path is not None and not token:
        raise UsageError(f"{source_text}: is empty")
    if not re.fullmatch(r"[!-~]*", token):
        raise UsageError(f"{source_text}: must be one token without blanks, got {len(token.split())} words")
    return token or None


def check_site(url: str | None) -> None:
    """Refuse an address of the site that is none. Raises `UsageError`."""
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not re.fullmatch(r"[!-~]+", url)):
        raise UsageError(
            f"--site: must be the address of the site, as in https://example.org/benchmarks, got {without_user(url)!r}"
        )


def _check_address(flag: str, url: str) -> None:
    """Refuse an address to which a token or a secret path would travel without encryption. Raises `UsageError`."""
    try:
        split_url = urlsplit(url)
        is_valid = bool(split_url.hostname) and re.fullmatch(r"[!-~]+", url) and split_url.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or split_url.username or split_url.scheme not in ("https", "http"):
        raise UsageError(f"{flag}: must be an address such as https://example.org/path, without a user name")
    if split_url.scheme == "http" and split_url.hostname not in LOOPBACK:
        raise UsageError(f"{flag}: must begin with https://, got http:// and the host {split_url.hostname}")


class NotifyError(InfrastructureError):
    """A notification could not be sent; the next run sends it."""

    def __str__(self) -> str:
        return f"{self.args[0]}; nothing is lost: the next run sends what is due"
