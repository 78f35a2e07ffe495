"""The code blocks of the documentation: found in the Markdown, with the mark that says why one is not run.

CONTRIBUTING.md, "Documentation", has the rules. Not known: code in an indented block, which is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("sh", "console", "yaml", "python", "json", "sql", "ini", "toml", "crontab", "mermaid", "text")
NOT_RUN, IN_PART = "not run", "run in part"
FENCE = re.compile(r"( *)(`{3,}|~{3,})\s*([\w-]*)(.*)")
MARK = re.compile(rf"\s*<!--\s*({NOT_RUN}|{IN_PART})\b:?\s*(.*?)\s*-->\s*")
INLINE = re.compile(
    r"`((?:runner|uploader|keras-matrix|make|docker compose|\.?(?:ci|lab)/[\w-]+|\.venv/bin/\w+)(?: [^`]*)?)`"
)
# What may contain indented text that is no code: a list, a footnote, an admonition, a tab or an API page of the site.
CONTAINER = re.compile(r"[-*+] |\d+[.)] |\[\^|!!!|\?\?\?|===|:::")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or code inside a sentence (language "inline"); `line` is that of its first line in the page."""

    page: str
    line: int
    language: str
    text: str
    mark: str | None = None
    title: str | None = None

    @property
    def is_shell(self) -> bool:
        """Return whether it has commands."""
        return self.language in ("sh", "console", "inline")

    @property
    def commands(self) -> str:
        """The text for a shell; of a console what follows `$ `, with empty lines in place of the output."""
        if self.language != "console":
            return self.text
        lines = [""]
        for line in self.text.splitlines():
            continues = lines[-1].endswith("\\")
            lines.append(line.removeprefix("$ ") if continues or line.startswith("$ ") else "")
        return "\n".join(lines[1:])

    def problem(self, message: str, line: int = 0) -> str:
        """Return a message about a line of the text, from 0."""
        return f"{self.page}:{self.line + line}: {message}"


def pages(root: Path = ROOT) -> list[str]:
    """The paths of all pages below the root."""
    found = [
        *(root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted((root / "docs").rglob("*.md")),
    ]
    return [str(path.relative_to(root)) for path in found]


def read(page: str, text: str) -> tuple[list[Block], list[str]]:
    """Return the blocks of a page, and the problems of their form."""
    lines = ["", *text.splitlines(), ""]
    blocks: list[Block] = []
    problems: list[str] = []
    number, container = 1, ""
    while number < len(lines) - 1:
        before, line, after = lines[number - 1 : number + 2]
        container = line if line[:1].strip() else container
        if fence := FENCE.match(line):
            end = next((n for n in range(number + 1, len(lines)) if lines[n].strip() == fence[2]), len(lines))
            block = _block(page, number + 1, lines[number:end], before)
            blocks.append(block)
            problems += _of_form(block, before)
            number = end
        elif MARK.fullmatch(line) and not FENCE.match(after):
            problems.append(f"{page}:{number}: a mark belongs directly above the fence of its block: move it there")
        elif line.startswith("    ") and not before.strip() and not CONTAINER.match(container):
            problems.append(f"{page}:{number}: an indented block has no language: fence it, with ```sh or another")
        blocks += [Block(page, number, "inline", one) for one in INLINE.findall(line) if not fence]
        number += 1
    return blocks, problems


def _block(page: str, line: int, lines: list[str], before: str) -> Block:
    fence, mark = FENCE.match(lines[0]), MARK.fullmatch(before)
    assert fence is not None
    text = "\n".join(one.removeprefix(fence[1]) for one in lines[1:])
    title = re.search(r'title="([^"]+)"', fence[4])
    return Block(page, line, fence[3], text, mark and mark[1], title and title[1])


def _of_form(block: Block, before: str) -> Iterator[str]:
    mark = MARK.fullmatch(before)
    if block.language not in LANGUAGES:
        got = block.language or "none"
        yield block.problem(f"the language of a block must be one of {', '.join(LANGUAGES)}, got {got}", -1)
    if mark and not mark[2]:
        yield block.problem(f"a mark states its reason: <!-- {mark[1]}: REASON -->", -2)
