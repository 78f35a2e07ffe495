"""Counts the words of the documents, and the pages and entries of the site's navigation; fails beyond their budgets.

Words are those of `wc -w`, so that tables and code count. A page's kind, on which its budget depends, follows from its
folder, or else from its group in the navigation (zensical.toml). Shown are all pages of the navigation, at any depth,
but for the lab notebook, the generated ones and the copies of files in the root. An entry of a group is such a page, or
a smaller group with one.

python -m ci.budgets   print the words of every shown page; name what is beyond its budget, and return 1
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

START, TUTORIAL, HOW_TO, EXPLANATION, REFERENCE, LAB = "start", "tutorial", "how-to", "explanation", "reference", "lab"
FOLDERS = {"tutorials": TUTORIAL, "howto": HOW_TO, "lab": LAB}
GROUPS = {
    "Home": START,
    "Measure": HOW_TO,
    "Keep it fast": HOW_TO,
    "Understand a step": HOW_TO,
    "Run it elsewhere": HOW_TO,
    "Reference": REFERENCE,
    "Why believe it": EXPLANATION,
    "Lab notebook": LAB,
    "Contribute": EXPLANATION,
}
WORDS = {START: 600, TUTORIAL: 700, HOW_TO: 1_200, EXPLANATION: 2_000}
"""The most words of a page of each kind; a reference is as long as it must be."""
ALL_WORDS = 60_000
CHANGELOG_WORDS = 1_500
MOST_PAGES = 45
ENTRIES = 8
RELEASE = re.compile(r"^## \[?\d", re.MULTILINE)

Nav = Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Page:
    """A text with its words, its kind and the most words that it may have."""

    name: str
    kind: str
    words: int
    limit: int | None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"of {self.limit:,}"
        return f"{self.words:7,} {limit:9} {self.name}"

    def problem(self) -> str | None:
        """What is wrong with its length, or None."""
        if self.limit is None or self.words <= self.limit:
            return None
        return f"{self.name}: {self.words:,} words, at most {self.limit:,} ({self.kind}): shorten it, or split it"


# --- The navigation ---------------------------------------------------------------------------------------------------


def paths(entry: object) -> Iterator[str]:
    """Yield the pages of an entry of the navigation, at any depth."""
    if isinstance(entry, str):
        yield entry
    for nested in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from paths(nested)


def groups(entry: object, title: str) -> Iterator[tuple[str, list[object]]]:
    """Yield the lists in an entry of the navigation, each with its title."""
    if isinstance(entry, list):
        yield title, entry
        for nested in entry:
            yield from groups(nested, title)
    elif isinstance(entry, dict):
        for name, nested in entry.items():
            yield from groups(nested, f"{title}, {name}" if title else name)


def kinds(nav: Nav) -> dict[str, str]:
    """The kind of each page of the navigation. Raises `SystemExit` for a group without one."""
    found = {}
    for title, entry in (item for group in nav for item in group.items()):
        for path in paths(entry):
            kind = FOLDERS.get(path.partition("/")[0]) or GROUPS.get(title)
            if kind is None:
                raise SystemExit(
                    f"zensical.toml: nav: {title}: ci/budgets.py has no kind for this group: add it to GROUPS"
                )
            found[path] = kind
    return found


def shown(nav: Nav, generated: Container[str]) -> dict[str, str]:
    """The pages that count, with their kinds."""
    return {path: kind for path, kind in kinds(nav).items() if kind != LAB and path not in generated}


def entries(group: object, pages: Container[str]) -> list[object]:
    """The entries of a group with a page that counts; a page in place of a group is its own entry."""
    members = group if isinstance(group, list) else [group]
    return [entry for entry in members if any(path in pages for path in paths(entry))]


# --- Budgets ----------------------------------------------------------------------------------------------------------


def changelog(text: str) -> Page:
    """The changelog up to its newest release."""
    released = RELEASE.search(text)
    return Page(
        "CHANGELOG.md", "until a release", words(text[: released.start()] if released else text), CHANGELOG_WORDS
    )


def words(text: str) -> int:
    """The words of a text, as `wc -w` counts them."""
    return len(text.split())


def navigation_problems(nav: Nav, pages: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with the groups of the navigation."""
    for title, members in groups([*nav], ""):
        if title and (count := len(entries(members, pages))) > ENTRIES:
            yield f"zensical.toml: nav: {title}: {count} entries, at most {ENTRIES}: join pages, or group them"
    if len(pages) > MOST_PAGES:
        yield f"zensical.toml: nav: {len(pages)} shown pages, at most {MOST_PAGES}: join pages"


def problems(pages: Sequence[Page], nav: Nav) -> list[str]:
    """What is beyond its budget: pages, their sum, groups of the navigation."""
    found = [problem for page in pages if (problem := page.problem())]
    if (total := total_words(pages)) > ALL_WORDS:
        found.append(f"docs: {total:,} words in all shown pages, at most {ALL_WORDS:,}: shorten them")
    return [*found, *navigation_problems(nav, in_docs(pages))]


def in_docs(pages: Sequence[Page]) -> dict[str, Page]:
    """The pages of the navigation, by their paths in docs/."""
    return {page.name.removeprefix("docs/"): page for page in pages if page.name.startswith("docs/")}


def total_words(pages: Sequence[Page]) -> int:
    """The words of all pages of the navigation."""
    return sum(page.words for page in in_docs(pages).values())


def counted(root: Path, nav: Nav, generated: Container[str]) -> list[Page]:
    """README, changelog and every shown page with their words."""
    readme = Page("README.md", START, words((root / "README.md").read_text(encoding="utf-8")), WORDS[START])
    found = [readme, changelog((root / "CHANGELOG.md").read_text(encoding="utf-8"))]
    for path, kind in shown(nav, generated).items():
        text = (root / "docs" / path).read_text(encoding="utf-8")
        found.append(Page(f"docs/{path}", kind, words(text), WORDS.get(kind)))
    return found


def report(root: Path, generated: Container[str]) -> int:
    """Print the words of every shown page and of all; return 1 if something is beyond its budget, else 0."""
    nav = tomllib.loads((root / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    pages = counted(root, nav, generated)
    print("words of each page, and its budget:")
    print("\n".join(map(str, pages)))
    total, listed = total_words(pages), in_docs(pages)
    print(f"budgets: {total:,} words of {ALL_WORDS:,} in {len(listed)} shown pages of {MOST_PAGES}")
    found = problems(pages, nav)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    from ci.pages import ALL_PAGES

    sys.exit(report(ROOT, ALL_PAGES))
