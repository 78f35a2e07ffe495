"""Checks every link of the documents: of the Markdown files, generated ones included, and of the built site's pages.

Guarantee: a link within the documents has an existing target and an existing anchor, also on GitHub, whose anchors the
site uses too; README.md and the others outside of docs/ link to no generated page, which GitHub does not have; the
site's navigation lists every page once; a page of the site loads nothing from another host. Every problem names file,
line and link.
Limit: links to other hosts are only listed, or requested once with --external, which needs a network.

python ci/links.py [--site FOLDER] [--external]   after ci/pages.py, whose build/docs has every page
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "build" / "docs"
OUTSIDE_DOCS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
# GitHub's page of the published site, relative to a file of the repository as GitHub shows it.
SITE = "../../deployments/github-pages"
TIMEOUT_S = 20
INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)", re.MULTILINE)
ATTRIBUTE = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
# A fenced block, an indented one, a code span.
CODE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$|(?<=\n\n) {4}.*?(?=\n\n {0,3}\S|\Z)|(`+)[^`].*?\2", re.M | re.S)
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Link:
    """A link: the file it is in, its line, and its target as written."""

    file: Path
    line: int
    target: str

    def problem(self, text: str) -> str:
        """The link in one line, with what is wrong with it."""
        name = self.file.relative_to(ROOT) if self.file.is_relative_to(ROOT) else self.file
        return f"{name}:{self.line}: {self.target}: {text}"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    """A document in which every character of code is a blank, so that places stay the same."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def documents(root: Path, built: Path) -> dict[Path, str]:
    """Every Markdown file with its text; a generated page has the place in docs/ at which others link to it."""
    pages = {root / "docs" / path.relative_to(built): path for path in sorted(built.rglob("*.md"))}
    pages |= {root / name: root / name for name in OUTSIDE_DOCS}
    return {place: path.read_text(encoding="utf-8") for place, path in pages.items()}


def markdown_links(file: Path, text: str) -> Iterator[Link]:
    """Yield the links of a Markdown file."""
    text = without_code(text)
    for pattern in (INLINE, DEFINITION, ATTRIBUTE):
        for match in pattern.finditer(text):
            yield Link(file, text.count("\n", 0, match.start(1)) + 1, match[1])


@cache
def markdown_anchors(text: str) -> frozenset[str]:
    """The anchors of a Markdown text as GitHub makes them from its headings, and those of its HTML."""
    prose = re.sub(r"^( *)(`{3,}|~{3,}).*?^ *\2.*?$", "", text, flags=re.M | re.S)
    anchors: list[str] = re.findall(r"<\w+[^>]*? (?:id|name)=\"([^\"]+)\"", prose)
    for heading in HEADING.findall(prose):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        copies = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", anchor) is not None for anchor in anchors)
        anchors.append(f"{slug}-{copies}" if copies else slug)
    return frozenset(anchors)


def markdown_problem(link: Link, root: Path, texts: Mapping[Path, str]) -> str | None:
    """What is wrong with a link of a Markdown file, or None."""
    parts = urlsplit(link.target)
    target = (link.file.parent / unquote(parts.path)).resolve() if parts.path else link.file
    in_docs = link.file.is_relative_to(root / "docs")
    if link.target == SITE and not in_docs:
        return None
    if parts.path.startswith("/") or not target.is_relative_to(root):
        return "must be a relative path within the repository"
    if target in texts and not target.exists() and not in_docs:
        return f"is generated, and not on GitHub: link to the site ({SITE})"
    if target not in texts and not target.exists():
        return "no such file"
    text = texts.get(target) or (target.read_text(encoding="utf-8") if target.suffix == ".md" else "")
    if parts.fragment and unquote(parts.fragment) not in markdown_anchors(text):
        return f"{target.name} has no such heading"
    return None


def navigation(entry: object) -> Iterator[str]:
    """Yield the pages of the site's navigation."""
    if isinstance(entry, str):
        yield entry
    for nested in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from navigation(nested)


def navigation_problems(root: Path, built: Path) -> Iterator[str]:
    """Yield what is wrong with the navigation."""
    listed = list(navigation(tomllib.loads((root / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]))
    pages = {str(path.relative_to(built)) for path in built.rglob("*.md")}
    yield from (f"zensical.toml: nav: {name}: no such page in docs/" for name in sorted({*listed} - pages))
    yield from (f"zensical.toml: nav: docs/{name} is missing" for name in sorted(pages - {*listed}))
    yield from (f"zensical.toml: nav: {name} is listed twice" for name in sorted({*listed}) if listed.count(name) > 1)


# --- The site ---------------------------------------------------------------------------------------------------------


@dataclass
class Page(HTMLParser):
    """The links, the anchors and the loaded files of a page of the site."""

    file: Path
    links: list[Link] = field(default_factory=list)
    loaded: list[Link] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element links to, loads and is named."""
        attributes = {key: value for key, value in attrs if value is not None}
        self.anchors.update(attributes[key] for key in ("id", "name") if key in attributes)
        link = attributes.get("href") or attributes.get("src")
        if link is not None and attributes.get("rel") not in ("canonical", "next", "prev"):
            kind = self.links if tag == "a" else self.loaded
            kind.append(Link(self.file, self.getpos()[0], link))


def site_problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with the links of the built pages."""
    # 404.html is served under any address; its links are those of every other page.
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    for page in pages.values():
        yield from (link.problem("must not be loaded from another host") for link in page.loaded if is_external(link))
        for link in (link for link in (*page.links, *page.loaded) if not is_external(link)):
            parts = urlsplit(link.target)
            target = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield link.problem("no such file in the site")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield link.problem(f"{target.relative_to(site)} has no such anchor")


def is_external(link: Link) -> bool:
    """Whether a link has another host, or an address for something else than a page."""
    return urlsplit(link.target).scheme != "" or link.target.startswith("//")


# --- Other hosts ------------------------------------------------------------------------------------------------------


def unreadable(address: str) -> str | None:
    """Why an address cannot be read, or None."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (link checker)"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return None
    except (urllib.error.URLError, OSError, ValueError) as error:
        return str(error)


def problems(root: Path, built: Path, site: Path | None, *, external: bool) -> Iterator[str]:
    """Yield every problem, also of the pages that were generated into `built`; print the addresses of other hosts."""
    texts = documents(root, built)
    links = [link for file, text in texts.items() for link in markdown_links(file, text)]
    yield from navigation_problems(root, built)
    for link in links:
        if not is_external(link) and (problem := markdown_problem(link, root, texts)):
            yield link.problem(problem)
    yield from site_problems(site.resolve()) if site else ()
    elsewhere = {link.target: link for link in links if is_external(link)}
    print(f"links: {len(links) - len(elsewhere)} within the documents; other hosts: {len(elsewhere)}")
    for address, link in sorted(elsewhere.items()):
        print(f"  {address}")
        if external and address.startswith("http") and (problem := unreadable(address)):
            yield link.problem(problem)


def main() -> int:
    """Print every problem; return 0 without problems, else 1."""
    parser = argparse.ArgumentParser(description="check every link of the documents and of the built site")
    parser.add_argument("--site", type=Path, help="also check the pages of this built site")
    parser.add_argument("--external", action="store_true", help="also request the links to other hosts")
    args = parser.parse_args()
    if not BUILT.is_dir():
        parser.error(f"{BUILT}: no such folder: make it with ci/docs, or with python -m ci.pages")
    all_problems = list(problems(ROOT, BUILT, args.site, external=args.external))
    for problem in all_problems:
        print(problem, file=sys.stderr)
    return 1 if all_problems else 0


if __name__ == "__main__":
    sys.exit(main())
