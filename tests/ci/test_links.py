"""Dead links are found in Markdown, in the site's navigation and in the built site; the documents have none."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import script

ROOT = Path(__file__).parents[2]
OTHER = '# Other\n\n## A `code` [link](index.md), twice\n## A code link, twice\n<a id="own"></a>\n\n```sh\n# no\n```\n'
NAV = '[project]\nnav = [{ "Home" = "index.md" }, { "More" = [{ "Other" = "other.md" }] }]\n'


@pytest.fixture(scope="module")
def links() -> ModuleType:
    return script("links")


@pytest.fixture
def project(tmp_path: Path, links: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two pages, whose navigation lists both; build/docs is the folder `pages`."""
    monkeypatch.setattr(links, "ROOT", tmp_path)
    links.markdown_anchors.cache_clear()
    for name, text in {"docs/index.md": "# Home\n", "docs/other.md": OTHER, "zensical.toml": NAV}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in links.OUTSIDE_DOCS:
        (tmp_path / name).write_text("[home](docs/index.md#home)\n")
    return tmp_path


def found_in(links: ModuleType, project: Path, site: Path | None = None, *, external: bool = False) -> list[str]:
    """The problems of a project without generated pages."""
    return list(links.problems(project, project / "docs", site, external=external))


def test_every_link_of_the_documents_has_a_target(
    links: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = tmp_path / "docs"
    script("pages").write(built)
    assert list(links.problems(ROOT, built, None, external=False)) == []
    counted = re.match(r"links: (\d+) within", capsys.readouterr().out)
    assert counted is not None
    assert int(counted[1]) > 500


def test_link_to_a_generated_page_has_its_target_in_the_build_and_not_on_github(
    links: ModuleType, project: Path
) -> None:
    built = project / "build"
    shutil.copytree(project / "docs", built)
    (built / "index.md").write_text("# Home\n[a](made.md#head), [b](made.md#no), [c](gone.md)\n")
    (built / "made.md").write_text("# Head\n[back](no.md), [code](../README.md)\n")
    (project / "zensical.toml").write_text(NAV.replace("}] }]", '}, { "Made" = "made.md" }] }]'))
    (project / "README.md").write_text(f"[a](docs/made.md), [site]({links.SITE})\n")
    assert list(links.problems(project, built, None, external=False)) == [
        "docs/index.md:2: made.md#no: made.md has no such heading",
        "docs/index.md:2: gone.md: no such file",
        "docs/made.md:2: no.md: no such file",
        f"README.md:1: docs/made.md: is generated, and not on GitHub: link to the site ({links.SITE})",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](other.md#a-code-link-twice), [b](other.md#a-code-link-twice-1), [c](other.md#own)", []),
        ("[two\nlines](missing.md)", ["docs/index.md:2: missing.md: no such file"]),
        ("\n[a](other.md#no)", ["docs/index.md:2: other.md#no: other.md has no such heading"]),
        ("[a](#no)", ["docs/index.md:1: #no: index.md has no such heading"]),
        ("[a](other.md#no)", ["docs/index.md:1: other.md#no: other.md has no such heading"]),
        ("![a](no.png)", ["docs/index.md:1: no.png: no such file"]),
        ('<img src="no.png">', ["docs/index.md:1: no.png: no such file"]),
        ("[a][b]\n\n[b]: no.md", ["docs/index.md:3: no.md: no such file"]),
        ("[a](/other.md)", ["docs/index.md:1: /other.md: must be a relative path within the repository"]),
        ("`[a](no.md)` and ``[a](no.md)``\n\n```text\n[a](no.md)\n```\n\n    [a](no.md)\n", []),
        ("[a](../README.md), [b](../..)", ["docs/index.md:1: ../..: must be a relative path within the repository"]),
        ("[a](https://example.org/no)", []),
    ],
)
def test_dead_links_of_a_page_are_found(links: ModuleType, project: Path, text: str, found: list[str]) -> None:
    (project / "docs" / "index.md").write_text(f"{text}\n\n# Home\n")
    assert found_in(links, project) == found


def test_navigation_lists_every_page_once(links: ModuleType, project: Path) -> None:
    nav = '[project]\nnav = [{ "Home" = "index.md" }, { "Again" = "index.md" }, { "No" = "no.md" }]\n'
    (project / "zensical.toml").write_text(nav)
    assert found_in(links, project) == [
        "zensical.toml: nav: no.md: no such page in docs/",
        "zensical.toml: nav: docs/other.md is missing",
        "zensical.toml: nav: index.md is listed twice",
    ]


def test_dead_links_and_files_of_other_hosts_are_found_in_a_site(links: ModuleType, project: Path) -> None:
    site = project / "site"
    (site / "more").mkdir(parents=True)
    (site / "more" / "index.html").write_text('<h1 id="title">More</h1>\n<a href="../index.html">home</a>')
    (site / "index.html").write_text(
        '<link rel="canonical" href="https://example.org/">\n<link rel="stylesheet" href="no.css">\n'
        '<script src="https://example.org/x.js"></script><a href="https://example.org">other</a>\n'
        '<a href="more/#title">good</a><a href="more/#no">bad</a><a href="no.html">bad</a><a href="#here">bad</a>'
    )
    assert found_in(links, project, site) == [
        "site/index.html:3: https://example.org/x.js: must not be loaded from another host",
        "site/index.html:4: more/#no: more/index.html has no such anchor",
        "site/index.html:4: no.html: no such file in the site",
        "site/index.html:4: #here: index.html has no such anchor",
        "site/index.html:2: no.css: no such file in the site",
    ]


def test_links_to_other_hosts_are_requested_only_if_wanted(
    links: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(links, "unreadable", lambda address: f"unreadable {address}")
    (project / "docs" / "index.md").write_text("# Home\n[a](https://example.org) [b](mailto:a@example.org)\n")
    assert found_in(links, project) == []
    assert found_in(links, project, external=True) == [
        "docs/index.md:2: https://example.org: unreadable https://example.org"
    ]
    assert "  https://example.org\n" in capsys.readouterr().out
