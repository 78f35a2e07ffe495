"""The wheels in the user's own folders that pip may install for some requirements, by their content.

The version of a wheel in a folder does not determine what is in it: it may be built again. Those of an index do not
change. The folders are pip's `find-links`, from its configuration and PIP_FIND_LINKS; addresses are not read.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

LIMIT_S = 60.0


def local_wheels(requirements: Sequence[str], pip: Sequence[str]) -> list[str]:
    """Return the wheels that pip, given by its command, may install from folders: each by its name and its hash."""
    wanted = [one for text in requirements if (one := _requirement(text)) is not None]
    folders = _folders(pip) if wanted else []
    files = sorted({file for folder in folders for file in _wheels(folder) if any(_is_of(file, one) for one in wanted)})
    return sorted({f"{file.name} {digest}" for file in files if (digest := _digest(file)) is not None})


def _requirement(text: str) -> Requirement | None:
    with contextlib.suppress(InvalidRequirement):
        return Requirement(text)
    return None


def _folders(pip: Sequence[str]) -> list[Path]:
    """Return the folders among the values of find-links; none if pip does not state its configuration."""
    command = [*pip, "config", "list", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(dict.fromkeys(folder for line in done.stdout.splitlines() for folder in _folders_of(line)))


def _folders_of(line: str) -> Iterator[Path]:
    """Yield the folders of a line such as `:env:.find-links='/wheels file:///more'`."""
    key, _, value = line.partition("=")
    if not key.endswith(".find-links"):
        return
    with contextlib.suppress(ValueError, SyntaxError):
        for place in str(ast.literal_eval(value)).split():
            address = urlsplit(place)
            if address.scheme in ("", "file"):
                yield Path(url2pathname(address.path) if address.scheme else place).expanduser().absolute()


def _wheels(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [one for one in folder.iterdir() if one.suffix == ".whl"]
    return []


def _is_of(file: Path, requirement: Requirement) -> bool:
    with contextlib.suppress(InvalidWheelFilename):
        name, version, _, _ = parse_wheel_filename(file.name)
        return name == canonicalize_name(requirement.name) and requirement.specifier.contains(version, prereleases=True)
    return False


def _digest(file: Path) -> str | None:
    with contextlib.suppress(OSError), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
    return None
