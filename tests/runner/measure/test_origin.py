"""The origin of cells that are in no matrix file, as `run.json` states it."""

from __future__ import annotations

import json

import pytest

from keras_matrix.records.codec import to_json
from keras_matrix.runner.measure.experiment import origin
from tests.conftest import make_settings


@pytest.mark.parametrize(
    ("content", "parsed"),
    [
        (make_settings(), to_json(make_settings())),
        ({"base": make_settings(seed=1), "trace": None}, {"base": to_json(make_settings(seed=1)), "trace": None}),
        ([make_settings(seed=2)], [to_json(make_settings(seed=2))]),
    ],
)
def test_values_are_written_as_json(content: object, parsed: object) -> None:
    made = origin("runner explain", content)
    assert (made["matrix_path"], json.loads(made["matrix_text"])) == ("runner explain", parsed)
    assert "\n" in made["matrix_text"], "one value a line"


def test_a_text_stays_as_it_is() -> None:
    assert origin("runner fc", "version: 1\n") == {"matrix_path": "runner fc", "matrix_text": "version: 1\n"}
