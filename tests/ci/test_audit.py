"""`ci/audit`: a vulnerable version fails, a database without answer is a skip with its reason, never a pass."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ci import audit

ROOT = Path(__file__).parents[2]
VULNERABLE = {
    ("urllib3", "1.24.1"): ("GHSA-mh33-7rrq-662w", "1.24.2"),
    ("duckdb", "2.0.0"): ("GHSA-of-this-test", "2.0.1"),
}

VULNERABLE = {
    ("urllib3", "1.24.1"): ("GHSA-mh33-7rrq-662w", "1.24.2"),
    ("duckdb", "2.0.0"): ("GHSA-of-this-test", "2.0.1"),
}
Known = Callable[[str, str], dict[str, Any]]


def as_recorded(name: str, version: str) -> dict[str, Any]:
    """Return the answer of api.osv.dev, shortened: it knows two vulnerable versions."""
    if (name, version) not in VULNERABLE:
        return {}
    identifier, safe = VULNERABLE[name, version]
    affected = {
        "package": {"name": name, "ecosystem": "PyPI", "purl": f"pkg:pypi/{name}"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": safe}]}],
        "versions": [version],
    }
    return {"vulns": [{"id": identifier, "summary": "a summary", "aliases": [], "affected": [affected]}]}


@contextmanager
def database(known: Known = as_recorded, status: int = 200) -> Iterator[str]:
    """Serve a database with OSV's interface on the loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(known(asked["package"]["name"], asked["version"])).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
        server.shutdown()


def test_database_that_does_not_answer_or_knows_nothing_is_not_asked() -> None:
    """Mutation: `no_answer` accepts any answer with status 200, as of a mirror that knows no vulnerability."""
    with database() as url:
        assert audit.no_answer(url) is None
    assert "Connection refused" in audit.no_answer(url)
    with database(status=404) as url:
        assert "HTTP Error 404" in audit.no_answer(url)
    with database(lambda name, version: {}) as url:
        assert audit.no_answer(url).endswith("1.24.1 is vulnerable")


def test_accepted_vulnerability_has_a_reason() -> None:
    """Mutation: `accepted` takes a line without a reason."""
    assert audit.accepted(["# why", "", "GHSA-1 is in a command that is not used"]) == ["GHSA-1"]
    with pytest.raises(ValueError, match="GHSA-2: must have a reason"):
        audit.accepted(["GHSA-2"])
    audit.accepted(audit.ACCEPTED.read_text(encoding="utf-8").splitlines())


def test_packages_with_several_versions_are_looked_up_apart() -> None:
    """Mutation: `one_of_each` returns one part."""
    versions = [("a", "==1"), ("a", "==2"), ("b", "==1"), ("b", "==3"), ("b", "==4")]
    assert audit.one_of_each(versions) == [["a==1", "b==1"], ["a==2", "b==3"], ["b==4"]]


@pytest.mark.process
@pytest.mark.nightly(why="installs pip-audit in .venv-audit")
def test_vulnerable_version_in_a_lock_fails_with_its_fix_and_others_pass(tmp_path: Path) -> None:
    """With the real pip-audit. Mutation: `main` returns 0 instead of pip-audit's exit code."""
    clean = tmp_path / "clean.txt"
    clean.write_text("psutil==7.0.0\n")
    with database() as url:
        fine, bad = (
            subprocess.run([ROOT / "ci" / "audit", "--url", url, *locks], capture_output=True, text=True, check=False)
            for locks in ([clean], [])
        )
    assert fine.returncode == 0, fine.stderr
    assert bad.returncode == 1, bad.stderr
    assert [line.split()[:4] for line in bad.stdout.splitlines() if "GHSA" in line] == [
        ["duckdb", "2.0.0", "GHSA-of-this-test", "2.0.1"]
    ]


@pytest.mark.process
@pytest.mark.nightly(why="installs pip-audit in .venv-audit")
def test_audit_without_a_database_is_a_skip_that_says_why() -> None:
    """Mutation: the message does not contain the reason."""
    with database() as url:
        pass
    done = subprocess.run([ROOT / "ci" / "audit", "--url", url], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert (
        f"audit: skipped, no package was checked: {url}: <urlopen error [Errno 111] Connection refused>" in done.stdout
    )
