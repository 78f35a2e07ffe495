"""Makes the pages of the documentation that are generated: they are built, not committed.

Guarantee: a page follows from the code, and is the same under each supported Python and on each machine.

python -m ci.pages   make build/docs anew, docs/ with the generated pages: ci/docs builds the site from it
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ci import compatibility, reference, reliability
from keras_matrix.uploader.bigquery import ddl

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDER = ROOT / "build" / "docs"

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": reference.commands_page,
    "reference/matrix-keys.md": reference.keys_page,
    "reference/statuses.md": reference.statuses_page,
    "reference/records.md": reference.records_page,
    "reference/python.md": reference.python_page,
    "reference/faults.md": reliability.page,
    "schema.md": ddl.page,
    "compatibility.md": compatibility.page,
}
"""The generated pages, by their paths in docs/."""


def write(folder: Path = FOLDER, docs: Path = DOCS, pages: Mapping[str, Callable[[], str]] = PAGES) -> None:
    """Replace a folder by a copy of docs/ with the generated pages. Raises `SystemExit` where docs/ has one of them."""
    for name in pages:
        if (docs / name).exists():
            raise SystemExit(f"docs/{name}: ci/pages.py generates this page for a build: remove the file")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(docs, folder)
    for name, text in pages.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text(), encoding="utf-8")


def main() -> int:
    """Make build/docs."""
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
