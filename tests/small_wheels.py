"""Tiny wheels of packages without dependencies, for an installation without an index."""

from __future__ import annotations

import zipfile
from pathlib import Path

WHEEL = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: {tag}\n"


def write_wheel(
    folder: Path, name: str, version: str, source: str, *, requires: tuple[str, ...] = (), tag: str = "py3-none-any"
) -> None:
    """Write the wheel of a package with one module, which has the package's name and this source."""
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {one}\n" for one in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as file:
        file.writestr(f"{name}.py", source)
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}")
        file.writestr(f"{info}/WHEEL", WHEEL.format(tag=tag))
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n")
