"""Notes, for workloads whose parity was compared, the hash of the module that builds each, in evidence/sources.json.

python ci/evidence.py WORKLOAD...; without any, for all of the catalog. tests/runner/checks/test_evidence.py reads it.
"""

import ast
import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "records" / "evidence" / "sources.json"


def source_hash(family: str) -> str:
    """Return the sha256 of the code of a family's module, or of its package's, without docstrings."""
    module = ROOT / "models" / f"{family}.py"
    modules = [module] if module.exists() else sorted((ROOT / "models" / family).glob("*.py"))
    return hashlib.sha256("".join(_code(path) for path in modules).encode()).hexdigest()


def _code(path: Path) -> str:
    """Return the lines of a module that are not of a docstring; not a syntax tree, which Pythons write differently."""
    text = path.read_text(encoding="utf-8")
    documented = [
        node.body[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False)
    ]
    left_out = {line for first in documented for line in range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    return "".join(line for number, line in enumerate(text.splitlines(keepends=True), 1) if number not in left_out)


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
