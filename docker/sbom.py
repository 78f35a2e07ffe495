"""Prints the contents of an image, as a CycloneDX 1.5 document: its Python distributions and its Debian packages.

    python sbom.py NAME >sbom.cdx.json

Reads what is installed; asks no network. Not known here: what the wheels carry within them, such as CUDA's libraries
beyond the distributions that bring them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any
from urllib.parse import quote

FIELDS = "${Package}\t${Version}\t${Architecture}\n"


def component(kind: str, name: str, version: str, qualifiers: str = "") -> dict[str, str]:
    """Return one package, by its package URL."""
    purl = f"pkg:{kind}/{quote(name)}@{quote(version)}{qualifiers}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def distributions() -> Iterator[dict[str, str]]:
    """Yield the Python distributions of this interpreter."""
    for found in metadata.distributions():
        yield component("pypi", found.metadata["Name"].lower().replace("_", "-"), found.version)


def packages() -> Iterator[dict[str, str]]:
    """Yield the Debian packages."""
    listed = subprocess.run(["dpkg-query", "-W", f"-f={FIELDS}"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name, version, architecture = line.split("\t")
        yield component("deb/debian", name, version, f"?arch={architecture}")


def document(name: str) -> dict[str, Any]:
    """Return the complete document."""
    found = {one["purl"]: one for one in (*packages(), *distributions())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name}},
        "components": [found[purl] for purl in sorted(found)],
    }


if __name__ == "__main__":
    json.dump(document(sys.argv[1]), sys.stdout, indent=1)
