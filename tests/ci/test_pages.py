"""Generated and copied pages are written into a build, with every committed page; old addresses lead to new ones."""

from __future__ import annotations

import tomllib
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


def test_file_of_the_root_is_a_page_whose_links_are_those_from_docs(pages: ModuleType, tmp_path: Path) -> None:
    text = "[a](docs/x.md#y) [b](#c) [d](ci/docs) [e](SECURITY.md#f) [g](https://h.i/j) "
    (tmp_path / "CONTRIBUTING.md").write_text(f"{text}[k](../../deployments/github-pages)\n")
    assert pages.copied("CONTRIBUTING.md", tmp_path) == (
        "[a](x.md#y) [b](#c) [d](../ci/docs) [e](security.md#f) [g](https://h.i/j) [k](index.md)\n"
    )


def test_link_to_a_file_of_the_root_leads_to_its_page_in_a_build(pages: ModuleType, tmp_path: Path) -> None:
    docs, built = tmp_path / "docs", tmp_path / "built"
    (docs / "howto").mkdir(parents=True)
    (docs / "index.md").write_text("[a](../CONTRIBUTING.md#b) [c](../LICENSE)\n")
    (docs / "howto" / "add.md").write_text("[a](../../SECURITY.md) [b](../index.md)\n")
    pages.write(built, docs, {})
    assert (built / "index.md").read_text() == "[a](contributing.md#b) [c](../LICENSE)\n"
    assert (built / "howto" / "add.md").read_text() == "[a](../security.md) [b](../index.md)\n"


def test_old_address_leads_to_the_page_that_has_the_text(pages: ModuleType, tmp_path: Path) -> None:
    pages.write_old_addresses(tmp_path, {"old.md": "new.md", "howto/old.md": "new.md#part"})
    assert 'location.replace("new.html" + (location.hash || ""))' in (tmp_path / "old.html").read_text()
    text = (tmp_path / "howto" / "old.html").read_text()
    assert 'content="1; url=../new.html#part"' in text
    assert 'location.replace("../new.html" + (location.hash || "#part"))' in text
    assert '<a href="../new.html#part">' in text


def test_pages_that_were_joined_have_their_text_in_a_page_that_exists(pages: ModuleType) -> None:
    anchors = script("links").markdown_anchors
    for old, new in pages.MOVED.items():
        page, _, heading = new.partition("#")
        assert not (pages.DOCS / old).exists(), old
        assert not heading or heading in anchors((pages.DOCS / page).read_text(encoding="utf-8")), new
        assert (pages.DOCS / page).is_file(), new


def test_configuration_of_a_site_has_its_address_and_the_folders_as_they_are_from_build(pages: ModuleType) -> None:
    text = (pages.ROOT / "zensical.toml").read_text()
    own = tomllib.loads(text)["project"]
    local = tomllib.loads(pages.configuration(text, ""))["project"]
    assert local == own | {"docs_dir": "docs", "site_dir": "site"}
    published = tomllib.loads(pages.configuration(text, "https://octo.github.io/keras-benchmark-matrix/"))["project"]
    assert published == local | {"site_url": "https://octo.github.io/keras-benchmark-matrix/"}


@pytest.mark.parametrize("address", ["octo.github.io/a/", "https://octo.github.io/a", "https:///", "https://a b/"])
def test_address_without_scheme_host_or_final_slash_is_refused(pages: ModuleType, address: str) -> None:
    with pytest.raises(SystemExit, match=f"SITE_URL: must begin with https:// and end with /, got {address}"):
        pages.configuration("[project]\n", address)
