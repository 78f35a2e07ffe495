"""Notes, for workloads whose parity was compared, the hash of the module that builds each, in evidence/sources.json.

python ci/evidence.py WORKLOAD...; without any, for all of the catalog. tests/runner/checks/test_evidence.py reads it.
"""

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "records" / "evidence" / "sources.json"


def source_hash(family: str) -> str:
    """Return the sha256 of the module of a family of workloads, or of the modules of its package."""
    module = ROOT / "models" / f"{family}.py"
    modules = [module] if module.exists() else sorted((ROOT / "models" / family).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in modules)).hexdigest()


def families() -> dict[str, str]:
    """Return the family of each workload; without `fc`, whose modes ci/process compares with NumPy each time."""
    catalog = json.loads((ROOT / "models" / "catalog.json").read_bytes())["workloads"]
    return {name: entry["family"] for name, entry in catalog.items() if entry["family"] != "fc"}


def main() -> None:
    """Update the file."""
    hashes = json.loads(SOURCES.read_bytes()) if SOURCES.exists() else {}
    sources_by_family = families()
    hashes.update(
        {
            name: source_hash(sources_by_family[name])
            for name in (sys.argv[1:] or sources_by_family)
            if name in sources_by_family
        }
    )
    SOURCES.write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
