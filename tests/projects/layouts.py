"""A Keras project with its own packages `models`, `runner`, `records`, ..., in a flat layout and in a src layout."""

from __future__ import annotations

import shutil
from pathlib import Path

PROJECT = Path(__file__).parent / "keras_project"
LAYOUTS = ("flat", "src")


def lay_out(folder: Path, layout: str) -> Path:
    """Copy the project's sources and matrix file to `folder`; return where the sources are."""
    sources = folder / "src" if layout == "src" else folder
    shutil.copytree(PROJECT, sources, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    if layout == "src":
        (sources / "matrix.yaml").rename(folder / "matrix.yaml")
    return sources
