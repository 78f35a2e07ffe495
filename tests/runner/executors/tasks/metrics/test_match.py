"""Metrics in logs: line by line, whatever a log looks like."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.runner.executors.tasks import metric_match
from keras_matrix.runner.executors.tasks.metric_match import Values, in_log, measure, number, quantile

SEED_LOG = """\
INFO:root:Epoch[0] Batch [49]	Speed: 829.012392 samples/sec	accuracy=0.172578
INFO:root:Epoch[0] Batch [99]	Speed: 844.157227 samples/sec	accuracy=0.206563
INFO:root:Epoch[0] Batch [149]	Speed: 835.582445 samples/sec	accuracy=0.230781
INFO:root:[Epoch 0] training: accuracy=0.248027
INFO:root:[Epoch 0] time cost: 69.030488
INFO:root:[Epoch 0] validation: accuracy=0.296484
INFO:root:Epoch[1] Batch [49]	Speed: 797.687061 samples/sec	accuracy=0.322344
INFO:root:Epoch[1] Batch [99]	Speed: 821.444257 samples/sec	accuracy=0.329883
INFO:root:Epoch[1] Batch [149]	Speed: 810.339386 samples/sec	accuracy=0.342969
INFO:root:[Epoch 1] training: accuracy=0.351983
INFO:root:[Epoch 1] time cost: 61.266612
INFO:root:[Epoch 1] validation: accuracy=0.393930
"""
NUMBER = r"(\d+\.\d+|\d+)"


def log_of(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def found(tmp_path: Path, text: str | bytes, pattern: str) -> list[str | None]:
    return list(in_log(log_of(tmp_path, text), pattern))


def measured(tmp_path: Path, text: str | bytes, reported: str = "", **metric: Any) -> dict[str, Any]:
    (tmp_path / "reported").write_text(reported)
    spec = {"name": "m", "pattern": r"x=(\S+)", "compute": "average", "discard": 0} | metric
    order = {"log": str(log_of(tmp_path, text)), "reported": str(tmp_path / "reported"), "workers": 1}
    return next(measure(order | {"metrics": [spec], "unrequested": False}))


@pytest.mark.parametrize(
    ("pattern", "compute", "value"),
    [
        (f"Speed: {NUMBER} samples/sec", "average", 823.0371280),
        (f"training: accuracy={NUMBER}", "last", 0.351983),
        (f"validation: accuracy={NUMBER}", "last", 0.393930),
        (f"time cost: {NUMBER}", "total", 130.2971),
    ],
)
def test_log_of_the_original_driver_has_its_figures(tmp_path: Path, pattern: str, compute: str, value: float) -> None:
    assert measured(tmp_path, SEED_LOG, pattern=pattern, compute=compute)["value"] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"x=1\nx=2", ["1", "2"]),
        (b"x=1\rx=2\r\nx=3\r", ["1", "2", "3"]),
        (b"\x1b[1mx=\x1b[32m4\x1b[0m done\n", ["4"]),
        (b"\x1b]8;;http://here/?x=9\x07x=4\x1b]8;;\x07\x1b]0;x=8\n", ["4"]),
        (b"\xff\xfe x=5 \xc3\x28\n", ["5"]),
        (b"x=6 x=7\n", ["6", "7"]),
        (b"x=\n8\n", []),
        (b"1/3 x=0.5\x08\x08\x08\n", ["0.5"]),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
def test_lines_may_have_any_line_end(tmp_path: Path, text: bytes, expected: list[str]) -> None:
    assert expected == found(tmp_path, text, r"x=(\S+)")


@pytest.mark.parametrize("pattern", [r"\s*x=(\d+)\s*", r"x=\s*(\d+)", r"(?s)x=(\d+).*", r"\Ax=(\d+)\Z", r"^x=(\d+)$"])
def test_match_does_not_extend_over_a_line_end(tmp_path: Path, pattern: str) -> None:
    assert found(tmp_path, "x=1\nx=2\n\nx=\n3\nx=4\n", pattern) == ["1", "2", "4"]


def test_pieces_of_a_log_are_cut_between_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"step {i} x={i}\n" for i in range(1000))
    monkeypatch.setattr(metric_match, "CHUNK_BYTES", 37)
    assert found(tmp_path, text, r"x=(\d+)$") == [str(i) for i in range(1000)]


def test_endless_line_is_cut_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_match, "CHUNK_BYTES", 100)
    monkeypatch.setattr(metric_match, "LINE_BYTES", 300)
    with log_of(tmp_path, b"a" * 5000 + b"\nx=1").open("rb") as file:
        pieces = list(metric_match.chunks(file))
    assert max(map(len, pieces)) <= 400
    assert b"".join(pieces) == b"a" * 5000 + b"\nx=1"


@pytest.mark.parametrize("pattern", [r"dur\xe9e: (\d)", "dur\\u00e9e: (\\d)", r"(?u)dur\we: (\d)"])
def test_pattern_may_name_letters_by_their_numbers(tmp_path: Path, pattern: str) -> None:
    assert found(tmp_path, "durée: 3 s\n", pattern) == ["3"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(r"x=(.)", ["\ufffd"]), (r"x=(\S+) ", ["\ufffd5"]), (r"x=([^ ]+)", ["\ufffd5"]), (r"x=(\w)", []), (r"x=(5)", [])],
)
def test_invalid_utf_8_is_matched_by_any_character(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    assert found(tmp_path, b"x=\xff5 y\n", pattern) == expected


def test_pattern_of_other_letters_finds_them(tmp_path: Path) -> None:
    assert found(tmp_path, "durée: 3 s\nDurée [é]: 4 s\n", r"dur[é]e: (\d)") == ["3"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12.0),
        ("-1.5e-3", -0.0015),
        ("+.5", 0.5),
        ("12.5 images", 12.5),
        ("about -3e2 s", -300.0),
        ("1,234.5", None),
        ("abc", None),
        ("", None),
        (None, None),
        ("10-20", None),
        ("\u22123.5", -3.5),
        ("loss \u22123.5 nats", -3.5),
        ("1e\u22123", 1e-3),
        ("1.5e\u22123 s", 1.5e-3),
        ("\uff0d3.5", -3.5),
        ("\ufe633.5", -3.5),
        ("\u20133.5", -3.5),
        ("\u20103.5", -3.5),
        ("10\u201320", None),
        ("\u20143.5", None),
        ("loss\u20143.5", None),
        ("- 3.5", None),
        ("\u2212 3.5", None),
        ("\uff11\uff12\uff0e\uff15", 12.5),
        ("+\uff11\uff45\uff0d\uff13", 1e-3),
        ("\uff11,\uff12\uff13\uff14", None),
        ("1,234", None),
        ("1'234", None),
        ("1\u00a0234", None),
        ("1.234.567", None),
        ("10\u207b\u00b3", None),
        ("1\u00bd", None),
        ("2^10", None),
        ("0xF", None),
        ("12.5 m\u00b2", 12.5),
        ("- loss: 0.5", 0.5),
    ],
)
def test_group_contains_exactly_one_number(text: str | None, expected: float | None) -> None:
    assert number(text) == expected


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("loss: \u22123.5", r"loss: (\S+)", -3.5),
        ("loss: \u22123.5", r"loss: .*?([0-9.]+)", -3.5),
        ("loss \u22123.5", r"(\d+\.\d+)", -3.5),
        ("Verlust \u22123.5 \xe9", r"Verlust .*?(\d+\.\d+) \xe9", -3.5),
        ("loss: 9.8e-05", r"loss: (\d+\.\d+)", 9.8e-5),
        ("loss: 9.8e\u221205", r"loss: (\d+\.\d+)", 9.8e-5),
        ("loss: 9.8e-05 \xe9", r"loss: (\d+\.\d+)(?= \xe9)?", 9.8e-5),
        ("speed: 1,234", r"speed: (\d+)", None),
        ("speed: 1,234.5 img/s", r"speed: (\d+)", None),
        ("speed: 1,234 \xe9", r": (\d+)(?=\S+ \xe9)", None),
        ("3,120,0.5", r"^(\d+),", 3.0),
        ("3, 120", r"^(\d+)", 3.0),
        ("2.50 epochs", r"(\d+\.\d+)", 2.5),
        ("x=0.123,456", r"x=(\d+\.\d+)", 0.123),
        ("12e3ab", r"(\d+)e", 12.0),
        ("step-12", r"step-(\d+)", 12.0),
    ],
)
def test_figure_is_the_number_of_the_line_or_missing_with_its_reason(
    tmp_path: Path, text: str, pattern: str, expected: float | None
) -> None:
    answer = measured(tmp_path, text + "\n", pattern=pattern, compute="last")
    assert answer["value"] == expected
    assert (answer["problem"] is None) == (expected is not None)
    if expected is None:
        assert answer["problem"].startswith("no_number: 1 of 1 matches are not a single number, such as '1,234")


def test_number_may_be_nan_or_infinite() -> None:
    assert math.isnan(number("loss nan") or 0)
    assert number("-inf") == -math.inf


@pytest.mark.parametrize(
    ("compute", "value"),
    [
        ("average", 4.0),
        ("last", 3.0),
        ("first", 1.0),
        ("total", 20.0),
        ("min", 1.0),
        ("max", 9.0),
        ("median", 3.0),
        ("p50", 3.0),
        ("p90", 7.4),
        ("p99", 8.84),
        ("average_aggregate", 4.0),
    ],
)
def test_values_are_reduced_to_one(tmp_path: Path, compute: str, value: float) -> None:
    made = measured(tmp_path, "x=1\nx=2\nx=5\nx=9\nx=3\n", compute=compute)
    assert made == {"name": "m", "value": pytest.approx(value), "matches": 5, "problem": None, "unit": None}


@pytest.mark.parametrize(
    ("compute", "value"), [("min", 1.0), ("max", 9.0), ("total", 20.0), ("first", 1.0), ("last", 3.0), ("p50", 3.0)]
)
def test_reduction_does_not_depend_on_the_buffer_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str, value: float
) -> None:
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.metric_match.FOLD_AT", 2)
    made = measured(tmp_path, "x=1\nx=2\nx=5\nx=9\nx=3\n", compute=compute)
    assert (made["value"], made["matches"]) == (pytest.approx(value), 5)


def test_workers_share_a_total_and_add_up_an_average() -> None:
    made = {}
    for compute in ("total", "average_aggregate"):
        values = Values(compute, workers=4)
        for value in (1.0, 3.0):
            values.add(value)
        made[compute] = values.result()
    assert made == {"total": (1.0, None), "average_aggregate": (8.0, None)}


def test_many_values_are_folded_without_loss() -> None:
    values = Values("average")
    for index in range(200_000):
        values.add(0.1 if index else 1e16)
    assert values.count == 200_000
    assert values.result() == (pytest.approx((1e16 + 199_999 * 0.1) / 200_000, rel=1e-15), None)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_quantiles_are_those_of_numpy(share: float) -> None:
    import numpy as np

    values = sorted([3.0, -1.0, 4.0, 1.5, 9.0, 2.6])
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)))


@pytest.mark.parametrize(
    ("text", "metric", "problem"),
    [
        ("y=1\n", {}, "no_match: no line of the output matches"),
        ("x=1\nx=abc\n", {}, "no_number: 1 of 2 matches are not a single number, such as 'abc'"),
        ("x=1\nx=nan\n", {}, "not_finite: 1 of 2 values are nan or infinite"),
        ("x=1\nx=nan\n", {"compute": "last"}, "not_finite: its last is nan"),
        ("x=1e308\nx=1e308\n", {"compute": "total"}, "not_finite: the values are too large to be summed"),
        ("x=1\nx=2\n", {"discard": 2}, "no_match: no line of the output matches"),
        ("x=1\n", {"pattern": r"x=1|(\d)9"}, "no_number: 1 of 1 matches are not a single number, such as ''"),
    ],
)
def test_metric_without_a_value_has_a_reason(tmp_path: Path, text: str, metric: dict[str, Any], problem: str) -> None:
    made = measured(tmp_path, text, **metric)
    assert (made["value"], made["problem"]) == (None, problem)


def test_nan_before_the_last_value_is_ignored_by_last(tmp_path: Path) -> None:
    assert measured(tmp_path, "x=nan\nx=2\n", compute="last")["value"] == 2.0


def test_first_values_of_a_log_can_be_discarded(tmp_path: Path) -> None:
    assert measured(tmp_path, "x=100\nx=1\nx=3\n", discard=1)["value"] == 2.0


def test_order_statistics_stop_where_memory_would_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.metric_match.MOST_VALUES", 10)
    made = measured(tmp_path, "x=1\n" * 20, compute="p90")
    assert made["value"] is None
    assert str(made["problem"]).startswith("too_many: ")


def test_command_reports_metrics_on_its_pipe(tmp_path: Path) -> None:
    lines = '{"metric": "m", "value": 3, "unit": "ms"}\n{"metric": "m", "value": 5}\n'
    assert measured(tmp_path, "", lines, pattern=None)["value"] == 4.0


def test_unrequested_metrics_are_stored_and_bad_lines_counted(tmp_path: Path) -> None:
    lines = [
        '{"metric": "loss", "value": 0.5, "unit": "nats"}',
        '{"metric": "loss", "value": 0.25, "unit": "nats"}',
        '{"metric": "bad", "value": true}',
        '{"metric": 3, "value": 1}',
        "no json",
        "[" * 100_000,
        "",
        '{"metric": "odd\\u0007", "value": 1}',
        json.dumps({"metric": "long", "value": 1, "unit": "m" * 65}),
    ]
    (tmp_path / "reported").write_text("\n".join(lines))
    order = {"log": str(log_of(tmp_path, "")), "reported": str(tmp_path / "reported"), "workers": 1}
    assert list(measure(order | {"metrics": [], "unrequested": True})) == [
        {"name": "loss", "value": 0.25, "matches": 2, "problem": None, "unit": "nats", "unrequested": True},
        {"bad_lines": 6},
    ]


def test_number_of_unrequested_metrics_is_limited(tmp_path: Path) -> None:
    lines = [json.dumps({"metric": f"m{number}", "value": number}) for number in range(100)]
    (tmp_path / "reported").write_text("\n".join(lines))
    values, _, bad = metric_match.reported(tmp_path / "reported")
    assert (list(values), bad) == ([f"m{number}" for number in range(metric_match.MOST_UNREQUESTED)], 0)
