"""Git in tests: with an author, and independent of the user's own configuration."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return its output. A new repository's branch is main."""
    own = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    own |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(folder), "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **own})
    return done.stdout.strip()
