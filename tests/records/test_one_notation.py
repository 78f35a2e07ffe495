"""Percentages, bytes, ratios and intervals are formatted by `records/text.py` alone: a scan of the product."""

from __future__ import annotations

import pytest

from tests.scan import facts, modules

PLACE = "records/text.py"
LEFT = {
    "models/language_models/shapes.py": "its text changes once the parity evidence is renewed, which has its hash",
}


def test_no_other_module_of_the_product_formats_a_percentage_bytes_a_ratio_or_an_interval() -> None:
    others = {name: text for name, text in modules().items() if name != PLACE and name not in LEFT}
    found = [f"{name}:{line}: {what}" for name, text in others.items() for line, what in facts(text).notations]
    assert len(modules()) > 550
    assert sum(facts(text).f_strings for text in modules().values()) > 3000
    assert not found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('f"{size >> 20} of it"', ["scales bytes"]),
        ('f"{share:.1%} of it"', ["formats a percentage"]),
        ('f"{100 * share:.1f} % of it"', ["formats a percentage"]),
        ('f"{size / 2**30:.1f} GiB"', ["formats bytes", "scales bytes"]),
        ('f"{ratio:.2f}x"', ["formats a ratio"]),
        ('f"[{low:.2f} {high:.2f}]"', ["formats an interval"]),
        ('f"({low:.2f} to {high:.2f})"', ["formats an interval"]),
        ('f"{percentage(share)} of {bytes_text(size)}, width {place:.2f}%"', []),
    ],
)
def test_the_scan_sees_each_notation(source: str, expected: list[str]) -> None:
    assert [what for _, what in facts(source).notations] == expected
