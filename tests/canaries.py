"""Secrets that no output may contain: variables and files of a caller, and the search for them.

Every secret contains `CANARY`, followed by where it comes from, so that a finding names its source.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

CANARY = "canary7f3a9c"
FOUND = re.compile(f"{CANARY}[A-Za-z0-9_]*".encode())
GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"

NAMES = """
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET CLOUDSDK_AUTH_ACCESS_TOKEN GITHUB_TOKEN
GOOGLE_OAUTH_ACCESS_TOKEN HF_TOKEN WANDB_API_KEY RAY_AUTH_TOKEN DB_PASSWORD MYSQL_PWD SSH_AUTH_SOCK KUBECONFIG
SIGNING_KEY ACTIONS_ID_TOKEN_REQUEST_URL
"""
SECRETS = {
    **{name: f"{CANARY}_{name}" for name in NAMES.split()},
    "PIP_INDEX_URL": f"https://user:{CANARY}_PIP_INDEX_URL@index.example/simple",
    "GIT_REMOTE": f"https://{CANARY}_GIT_REMOTE@github.com/me/project.git",
    "http_proxy": f"user:{CANARY}_http_proxy@127.0.0.1:9",
}
FILES = (".config/gcloud/application_default_credentials.json", ".aws/credentials", ".netrc", ".ray/auth_token")


def write_home(folder: Path) -> Path:
    """Create a home folder with credentials files, and return it."""
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{CANARY}_{path.name.partition('.')[0] or path.name.lstrip('.')}\n")
    return folder


def leaks(folder: Path) -> dict[str, set[str]]:
    """Return the secrets in the names and contents of all files of a folder, by path; compressed files are read."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        inside = set().union(*(FOUND.findall(text) for text in (str(path).encode(), *_contents(path))))
        if inside:
            found[str(path.relative_to(folder))] = {one.decode() for one in inside}
    return found


def _contents(path: Path) -> Iterator[bytes]:
    if path.is_symlink() or not path.is_file():
        return
    data = path.read_bytes()
    yield data
    if data.startswith(GZIP):
        yield gzip.decompress(data)
    if data.startswith(PARQUET):
        import duckdb

        yield str(duckdb.sql(f"SELECT * FROM '{path}'").fetchall()).encode()
