"""Names of settings and parameters are two name spaces, and no two values have one text."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import SETTINGS, assignment, named, parameter_key, parameter_of, unnamed
from tests.conftest import make_settings

NAMES = st.sampled_from([*SETTINGS, "width", "params", "params.feed", "params.params.feed", "a b", "a=1", "é"])
VALUES = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["1", "1.0", "True", "None", "nan", "a b", "a  b", "a, b", "a=b", '"', "\\u0020", "\u202ea", ""]),
)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_settings_and_parameters_are_read_back_from_their_keys(params: dict[str, bool | int | float | str]) -> None:
    settings = make_settings(params=params, feed="host_fed")
    assert canonical(unnamed(named(settings))) == canonical(settings)


@given(st.lists(st.tuples(NAMES, VALUES), min_size=2, max_size=12))
def test_texts_differ_if_names_or_values_do(pairs: list[tuple[str, bool | int | float | str]]) -> None:
    for one, other in combinations(pairs, 2):
        texts = [assignment(parameter_key(name), value) for name, value in (one, other)]
        assert (texts[0] == texts[1]) == (canonical(one) == canonical(other))


@pytest.mark.parametrize(
    ("name", "key", "value", "text"),
    [
        ("width", "width", 64, "width=64"),
        ("feed", "params.feed", "a", "params.feed=a"),
        ("feed", "params.feed", "1", 'params.feed="1"'),
        ("rate", "rate", "a b", 'rate="a b"'),
        ("rate", "rate", "a  b", 'rate="a \\u0020b"'),
        ("rate", "rate", True, "rate=True"),
        ("params.feed", "params.params.feed", 1, 'params."params.feed"=1'),
    ],
)
def test_key_and_text_of_a_parameter(name: str, key: str, value: bool | int | str, text: str) -> None:
    assert (parameter_key(name), assignment(key, value)) == (key, text)
    assert parameter_of(key) == name
    assert parameter_of("feed") is None
