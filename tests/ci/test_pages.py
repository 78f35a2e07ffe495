"""The generated pages are written into a build, with every committed page, and only there."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import script


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return script("pages")


def test_build_has_every_committed_page_and_every_generated_one(pages: ModuleType, tmp_path: Path) -> None:
    pages.write(tmp_path / "docs", pages=dict.fromkeys(pages.PAGES, lambda: "# A page\n"))
    committed = {str(path.relative_to(pages.DOCS)) for path in pages.DOCS.rglob("*.*")}
    built = {str(path.relative_to(tmp_path / "docs")) for path in (tmp_path / "docs").rglob("*.*")}
    assert len(committed) > 80
    assert len(pages.PAGES) == 8
    assert built == committed | set(pages.PAGES)


@pytest.mark.parametrize("name", script("pages").PAGES)
def test_generated_page_has_a_title_and_says_what_it_is_generated_from(pages: ModuleType, name: str) -> None:
    text = pages.PAGES[name]()
    assert text.startswith("# ")
    assert text.endswith("\n")
    assert text.count("\nGenerated from ") == 1
    assert len(text.split()) > 500


def test_build_replaces_what_an_earlier_one_left(pages: ModuleType, tmp_path: Path) -> None:
    docs, built = tmp_path / "docs", tmp_path / "built"
    docs.mkdir()
    (docs / "index.md").write_text("# Home\n")
    pages.write(built, docs, {"reference/old.md": lambda: "# Old\n"})
    pages.write(built, docs, {"reference/new.md": lambda: "# New\n"})
    assert {str(path.relative_to(built)) for path in built.rglob("*.md")} == {"index.md", "reference/new.md"}
    assert (built / "reference" / "new.md").read_text() == "# New\n"


def test_committed_page_that_is_generated_is_refused(pages: ModuleType, tmp_path: Path) -> None:
    docs, built = tmp_path / "docs", tmp_path / "built"
    docs.mkdir()
    (docs / "schema.md").write_text("# Tables\n")
    with pytest.raises(SystemExit, match=r"docs/schema.md: ci/pages.py generates this page for a build: remove"):
        pages.write(built, docs, {"schema.md": lambda: "# Tables\n"})
    assert not built.exists()
