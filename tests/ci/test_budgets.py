"""Pages beyond their budget of words, and groups with too many entries, are named; synthetic pages only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import script

GENERATED = {"schema.md", "reference/cli.md"}
NAV = """
[project]
nav = [
  { "Home" = "index.md" },
  { "Measure" = [
    { "First" = "tutorials/first.md" },
    { "Own" = [{ "Program" = "howto/program.md" }, { "Task" = "task.md" }] },
  ] },
  { "Reference" = [
    { "Keys" = "keys.md" },
    { "Lists" = [{ "Options" = "reference/cli.md" }, { "Tables" = "schema.md" }] },
  ] },
  { "Why believe it" = [{ "Noise" = "noise.md" }] },
  { "Lab notebook" = [{ "Figures" = "lab/figures.md" }] },
]
"""
# At most this many words: README and start page 600, tutorial 700, how-to 1,200, explanation 2,000, changelog 1,500.
LONGEST = {
    "README.md": 600,
    "CHANGELOG.md": 1_500,
    "docs/index.md": 600,
    "docs/tutorials/first.md": 700,
    "docs/howto/program.md": 1_200,
    "docs/task.md": 1_200,
    "docs/keys.md": 9_000,
    "docs/noise.md": 2_000,
    "docs/lab/figures.md": 9_000,
}


@pytest.fixture(scope="module")
def budgets() -> ModuleType:
    return script("budgets")


def project(root: Path, words: Mapping[str, int], nav: str = NAV) -> Path:
    """A project whose texts have so many words; the generated pages are not in it."""
    (root / "zensical.toml").write_text(nav)
    for name, count in words.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("word " * count)
    return root


def test_pages_that_are_as_long_as_they_may_be_pass_and_are_printed(
    budgets: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budgets.report(project(tmp_path, LONGEST), GENERATED) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines() == [
        "words of each page, and its budget:",
        "    600 of 600    README.md",
        "  1,500 of 1,500  CHANGELOG.md",
        "    600 of 600    docs/index.md",
        "    700 of 700    docs/tutorials/first.md",
        "  1,200 of 1,200  docs/howto/program.md",
        "  1,200 of 1,200  docs/task.md",
        "  9,000           docs/keys.md",
        "  2,000 of 2,000  docs/noise.md",
        "budgets: 14,700 words of 60,000 in 6 shown pages of 45",
    ]


@pytest.mark.parametrize(
    ("name", "count", "problem"),
    [
        ("README.md", 601, "README.md: 601 words, at most 600 (start): shorten it, or split it"),
        ("docs/index.md", 601, "docs/index.md: 601 words, at most 600 (start): shorten it, or split it"),
        (
            "docs/tutorials/first.md",
            701,
            "docs/tutorials/first.md: 701 words, at most 700 (tutorial): shorten it, or split it",
        ),
        (
            "docs/howto/program.md",
            1_201,
            "docs/howto/program.md: 1,201 words, at most 1,200 (how-to): shorten it, or split it",
        ),
        ("docs/task.md", 1_201, "docs/task.md: 1,201 words, at most 1,200 (how-to): shorten it, or split it"),
        ("docs/noise.md", 2_001, "docs/noise.md: 2,001 words, at most 2,000 (explanation): shorten it, or split it"),
        (
            "CHANGELOG.md",
            1_501,
            "CHANGELOG.md: 1,501 words, at most 1,500 (until a release): shorten it, or split it",
        ),
        ("docs/keys.md", 54_301, "docs: 60,001 words in all shown pages, at most 60,000: shorten them"),
    ],
)
def test_one_word_too_many_is_the_only_problem(
    budgets: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    count: int,
    problem: str,
) -> None:
    assert budgets.report(project(tmp_path, {**LONGEST, name: count}), GENERATED) == 1
    assert capsys.readouterr().err == f"{problem}\n"


def test_changelog_is_counted_up_to_the_newest_release(budgets: ModuleType) -> None:
    text = f"# Changelog\n\n## Unreleased\n{'new ' * 10}\n## 0.2.0\n{'old ' * 2_000}\n## 0.1.0\n"
    assert budgets.changelog(text).words == 4 + 10


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("count", [8, 9])
def test_group_has_at_most_eight_entries_without_those_of_generated_pages(
    budgets: ModuleType, count: int, nested: bool
) -> None:
    pages = [{f"Page {number}": f"{number}.md"} for number in range(count)]
    members = [*pages, {"Lists": [{"Tables": "schema.md"}]}]
    nav = [{"Measure": [{"More": members}] if nested else members}]
    title = "Measure, More" if nested else "Measure"
    problems = [f"zensical.toml: nav: {title}: 9 entries, at most 8: join pages, or group them"]
    assert list(budgets.navigation_problems(nav, budgets.shown(nav, GENERATED))) == (problems if count > 8 else [])


@pytest.mark.parametrize("extra", [0, 1])
def test_at_most_45_pages_are_shown_in_groups_of_groups_too(budgets: ModuleType, extra: int) -> None:
    titles = ("Measure", "Keep it fast", "Understand a step", "Run it elsewhere", "Reference")
    nav: list[dict[str, object]] = [
        {title: [{f"Page {number}": f"{title}{number}.md"} for number in range(8)]} for title in titles
    ]
    nav += [{"Home": "index.md"}, {"Lab notebook": [{f"{number}": f"lab/{number}.md"} for number in range(50)]}]
    group: object = {"Group": [{"One": "one.md"}, {"Two": "two.md"}]}
    nav.append({"Why believe it": [group, *({f"{number}": f"why{number}.md"} for number in range(2 + extra))]})
    assert list(budgets.navigation_problems(nav, budgets.shown(nav, GENERATED))) == (
        ["zensical.toml: nav: 46 shown pages, at most 45: join pages"] if extra else []
    )


def test_group_without_a_kind_is_an_error(budgets: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"zensical.toml: nav: Sell it: ci/budgets.py has no kind for this group: add"):
        budgets.kinds([{"Sell it": [{"Price": "price.md"}]}])
    assert budgets.kinds([{"Sell it": [{"First": "tutorials/first.md"}]}]) == {"tutorials/first.md": "tutorial"}
