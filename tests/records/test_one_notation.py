"""Percentages, bytes, ratios and intervals are formatted by `records/text.py` alone: a scan of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("records", "models", "analysis", "uploader", "dashboards", "runner")
PLACE = "records/text.py"
LEFT = {
    "models/language_models/shapes.py": "its text changes once the parity evidence is renewed, which has its hash",
}
UNIT = re.compile(r"^[ \u00a0]?[KMGT]iB\b")
PERCENT = re.compile(r"^[ \u00a0]?%(?!\w)")
NOT_CSS = re.compile(r"^[ \u00a0]%|^%[ ,;)]")


def formatted(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the mistake of each figure in an f-string that is formatted there."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for part, after in zip(node.values, [*node.values[1:], ast.Constant("")], strict=True):
            if not isinstance(part, ast.FormattedValue):
                continue
            form = ast.unparse(part.format_spec)[2:-1] if part.format_spec else ""
            behind = after.value if isinstance(after, ast.Constant) and isinstance(after.value, str) else ""
            if form.endswith("%") or (
                form.endswith(("f", "g")) and (NOT_CSS.match(behind) or (PERCENT.match(behind) and "width" in behind))
            ):
                yield node.lineno, "a percentage"
            elif form and UNIT.match(behind):
                yield node.lineno, "bytes"
            elif form.endswith("f") and re.match(r"x(?!\w)|\u00d7", behind):
                yield node.lineno, "a ratio"
            elif form.endswith(("f", "g")) and re.match(r"[\u2013]|-$| to $| $", behind) and _opens(node, part):
                yield node.lineno, "an interval"


def _opens(node: ast.JoinedStr, part: ast.FormattedValue) -> bool:
    before = node.values[node.values.index(part) - 1] if node.values.index(part) else None
    return isinstance(before, ast.Constant) and str(before.value).endswith(("[", "("))


def scaled(tree: ast.AST) -> Iterator[int]:
    """Yield the lines at which a number of bytes is divided or shifted inside a text."""
    for text in ast.walk(tree):
        if isinstance(text, ast.JoinedStr):
            for node in ast.walk(text):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift):
                    yield text.lineno
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and "2 **" in ast.unparse(node.right):
                    yield text.lineno


def test_no_other_module_of_the_product_formats_a_percentage_bytes_a_ratio_or_an_interval() -> None:
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    texts, found = 0, []
    for path in files:
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        texts += sum(isinstance(node, ast.JoinedStr) for node in ast.walk(tree))
        if name != PLACE and name not in LEFT:
            found += [f"{name}:{line}: formats {what}" for line, what in formatted(tree)]
            found += [f"{name}:{line}: scales bytes" for line in scaled(tree)]
    assert len(files) > 550
    assert texts > 3000
    assert not found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('f"{share:.1%} of it"', ["a percentage"]),
        ('f"{100 * share:.1f} % of it"', ["a percentage"]),
        ('f"{size / 2**30:.1f} GiB"', ["bytes"]),
        ('f"{ratio:.2f}x"', ["a ratio"]),
        ('f"[{low:.2f} {high:.2f}]"', ["an interval"]),
        ('f"({low:.2f} to {high:.2f})"', ["an interval"]),
        ('f"{percentage(share)} of {bytes_text(size)}, width {place:.2f}%"', []),
    ],
)
def test_the_scan_sees_each_notation(source: str, expected: list[str]) -> None:
    assert [what for _, what in formatted(ast.parse(source))] == expected
