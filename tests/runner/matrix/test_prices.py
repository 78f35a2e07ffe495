"""A file of prices: what it means, and every input that is refused, with its complete messages."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.analysis.cost import Prices
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.prices import load, parse
from tests.golden import Golden
from tests.messages import check_texts, refusal

FILE = """
machines:
  n1-standard-8: {per_hour: 0.38, currency: EUR, electricity: included}
  NVIDIA A100-SXM4-40GB: {per_hour: 3, currency: EUR}
electricity: {per_kwh: 0.30, currency: EUR}
"""


def test_machines_and_electricity_have_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(FILE)
    per_hour = {"n1-standard-8": 0.38, "NVIDIA A100-SXM4-40GB": 3.0}
    assert load(path) == Prices("EUR", per_hour, 0.30, frozenset({"n1-standard-8"}))


def test_electricity_alone_is_a_price() -> None:
    assert parse("prices.yaml", b"electricity: {per_kwh: 0.30, currency: USD}") == Prices("USD", {}, 0.30)


def test_messages_of_refused_prices(golden: Golden) -> None:
    def messages(text: str) -> list[str]:
        problems = refusal(UsageError, lambda: parse("prices.yaml", text.encode()))
        assert all(problem.startswith("prices.yaml:") for problem in problems)
        return [problem.removeprefix("prices.yaml:") for problem in problems]

    check_texts(golden, "prices.txt", messages)


@pytest.mark.parametrize(("make", "reason"), [(False, "no such file"), (True, "not a regular file")])
def test_path_that_is_no_file_is_refused(tmp_path: Path, make: bool, reason: str) -> None:
    path = tmp_path / "prices.yaml"
    if make:
        path.mkdir()
    assert refusal(UsageError, lambda: load(path)) == [f"--prices: {reason}, got {str(path)!r}"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["EUR", "included"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["machines", "electricity", "per_hour", "per_kwh", "currency", "a"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
def test_any_file_is_prices_above_zero_or_named_with_its_lines(text: bytes) -> None:
    try:
        found = parse("prices.yaml", text)
    except UsageError as error:
        assert [line for line in str(error).split("\n") if not re.match(r"prices\.yaml:\d+: .", line)] == []
        return
    amounts = [*found.per_hour.values(), *([] if found.per_kwh is None else [found.per_kwh])]
    assert amounts != []
    assert all(0 < amount < math.inf for amount in amounts)
    assert re.fullmatch("[A-Z]{3}", found.currency)
