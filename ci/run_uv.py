"""Runs uv with pip's settings of how an index is reached, which uv does not read: PYTHON ci/run_uv.py pip install ...

Guarantee: uv is the version that locks/cpu.txt pins. It is in the environment of the Python that runs this; where it is
missing, pip installs it there first, with its hash. Settings of uv itself win over pip's.
Limit: pip's settings for one command are those of `install`; its keyring and its cache are not handed on. The CPU build
of torch has no hash: it may come from any index that the user has set, as with pip.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "locks" / "cpu.txt"
# pip's setting: uv's variables. With each, uv's separator where the setting is a list.
VARIABLES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "index-url": (("UV_INDEX_URL",), ""),
    "extra-index-url": (("UV_EXTRA_INDEX_URL",), " "),
    "find-links": (("UV_FIND_LINKS",), ","),
    "trusted-host": (("UV_INSECURE_HOST",), " "),
    "cert": (("SSL_CERT_FILE",), ""),
    "client-cert": (("SSL_CLIENT_CERT",), ""),
    "proxy": (("HTTP_PROXY", "HTTPS_PROXY"), ""),
    "timeout": (("UV_HTTP_TIMEOUT",), ""),
    "default-timeout": (("UV_HTTP_TIMEOUT",), ""),
    "retries": (("UV_HTTP_RETRIES",), ""),
    "no-cache-dir": (("UV_NO_CACHE",), ""),
}
# pip takes the best of all indexes, uv would take the first that has any version. Hashes make it safe, but for torch.
ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def pip_settings(lines: str) -> dict[str, str]:
    """The settings that `pip config list` prints: of a file's sections `install` wins, over all of them a variable."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for section, name, value in re.findall(r"(?m)^(global|install|:env:)\.([a-z-]+)=(.*)$", lines):
        sections[section][name] = str(ast.literal_eval(value))
    return {name: value for settings in sections.values() for name, value in settings.items()}


def uv_settings(pip: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables for uv that say the same as pip's settings, except those that are set already."""
    variables = dict(ALWAYS)
    for name, value in pip.items():
        targets, separator = VARIABLES.get(name, ((), ""))
        variables |= dict.fromkeys(targets, separator.join(value.split()) if separator else value)
    return {name: value for name, value in variables.items() if name not in environment}


def uv_arguments(pip: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The arguments of `uv pip COMMAND`, with what uv reads from no variable: pip's `no-index`."""
    forbidden = pip.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t")
    return [*arguments[:2], *(["--no-index"] if forbidden and arguments[:1] == ["pip"] else []), *arguments[2:]]


def pin_of_uv(lock: str) -> str:
    """The lines of a lock that pin uv. Raises `ValueError` for a lock without it."""
    pin = re.search(r"^uv==.*(?:\\\n +--hash=\S+ ?)+", lock, re.MULTILINE)
    if pin is None:
        raise ValueError(f"{LOCK.relative_to(ROOT)}: has no pin of uv with a hash; run ci/lock")
    return pin.group() + "\n"


def uv() -> Path:
    """The program, installed if it is missing. Raises `CalledProcessError` where pip cannot install it."""
    program = Path(sys.executable).parent / "uv"
    if not program.exists():
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as pin:
            pin.write(pin_of_uv(LOCK.read_text(encoding="utf-8")))
            pin.flush()
            options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", pin.name]
            subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True)
    return program


def main() -> None:
    """Become uv, with the arguments of this script."""
    program = uv()
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings = pip_settings(listed.stdout)
    arguments = uv_arguments(settings, sys.argv[1:])
    os.execve(program, ["uv", *arguments], {**os.environ, **uv_settings(settings, os.environ)})


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
