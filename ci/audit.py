"""Looks up every locked package in the OSV database of vulnerabilities, with pip-audit: `ci/audit` in its environment.

    ci/audit                     the locks; exit code 1 if a version is known to be vulnerable, with the fixed versions
    ci/audit LOCK...             these locks
    ci/audit --url URL           another database with the interface of OSV

If the database does not answer, nothing was checked: the reason is printed, and the exit code is 0. Not PyPI's own
database: a mirror without it answers "not found" for every package, which pip-audit reports as no vulnerability.

locks/keras2.txt is left out: it is old on purpose, for tests of programs on Keras 2, and in no image.

locks/accepted-vulnerabilities.txt lists those that do not affect this project, one a line: the identifier, and why not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci import check_locks

LOCKS = Path(__file__).parent.parent / "locks"
ACCEPTED = LOCKS / "accepted-vulnerabilities.txt"
OLD = LOCKS / "keras2.txt"
URL = "https://api.osv.dev/v1/query"
TIMEOUT_S = 15
# A version that is known to be vulnerable (CVE-2019-11324): who has no answer for it knows nothing.
KNOWN = {"package": {"name": "urllib3", "ecosystem": "PyPI"}, "version": "1.24.1"}


def no_answer(url: str) -> str | None:
    """Return why a database cannot be asked, None if it knows a vulnerable version."""
    request = urllib.request.Request(url, json.dumps(KNOWN).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            document = json.load(answer)
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    is_known = isinstance(document, dict) and document.get("vulns")
    return None if is_known else f"{url}: does not know that {KNOWN['package']} {KNOWN['version']} is vulnerable"


def accepted(lines: Iterable[str]) -> list[str]:
    """Return the identifiers of accepted vulnerabilities. Raises ValueError for one without a reason."""
    identifiers = []
    for line in lines:
        identifier, _, reason = line.strip().partition(" ")
        if not identifier or identifier.startswith("#"):
            continue
        if not reason:
            raise ValueError(f"{ACCEPTED.name}: {identifier}: must have a reason after it")
        identifiers.append(identifier)
    return identifiers


def main() -> int:
    """Look up, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locks", nargs="*", type=Path, metavar="LOCK")
    parser.add_argument("--url", default=URL)
    args = parser.parse_args()
    if reason := no_answer(args.url):
        print(f"audit: skipped, no package was checked: {reason}")
        return 0
    locks = args.locks or [path for path in sorted(LOCKS.glob("*.txt")) if path not in (ACCEPTED, OLD)]
    versions = sorted({(canonicalize_name(pin.name), str(pin.specifier)) for lock in locks for pin in _pins(lock)})
    print(f"audit: {len(versions)} packages of {len(locks)} locks, at {args.url}", flush=True)
    ignored = accepted(ACCEPTED.read_text(encoding="utf-8").splitlines())
    return max(_looked_up(args.url, ignored, part) for part in one_of_each(versions))


def one_of_each(versions: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the requirements, divided so that no part has two versions of a package, which pip-audit refuses."""
    parts: list[dict[str, str]] = []
    for name, version in versions:
        part = next((part for part in parts if name not in part), None)
        if part is None:
            parts.append(part := {})
        part[name] = version
    return [[f"{name}{version}" for name, version in part.items()] for part in parts]


def _pins(lock: Path) -> list[Requirement]:
    requirements, _ = check_locks.pins(lock.read_text(encoding="utf-8"))
    return requirements


def _looked_up(url: str, ignored: Iterable[str], requirements: Iterable[str]) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", "osv", "--osv-url", url]
        # All is pinned: nothing is resolved or installed.
        command += ["--no-deps", "--disable-pip", "--strict", "--progress-spinner", "off", "--requirement", file.name]
        for identifier in ignored:
            command += ["--ignore-vuln", identifier]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
