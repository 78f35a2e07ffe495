"""A difference in TF32 is a caveat in league as_shipped and prevents a comparison in league matched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison import same_work
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.comparison.versus import versus
from keras_matrix.analysis.regression.gate import GateOutcome, Rule
from keras_matrix.records.schema import Record, Resolved
from tests.conftest import make_record, make_settings

ALL = {"tf32": True, "tf32_matmul": True, "tf32_convolution": True, "tf32_rnn": True}
NONE = {"tf32": False, "tf32_matmul": False, "tf32_convolution": False, "tf32_rnn": False}
# As PyTorch is shipped: cuDNN's operations alone.
CUDNN = ALL | {"tf32_matmul": False}
STEP_TIMES_S = {"tensorflow": 0.010, "jax": 0.011, "torch": 0.020}


def on(backend: str, league: str = "as_shipped", **resolved: Any) -> list[Record]:
    """Five processes of one cell on a GPU; `resolved` are fields of its resolved settings."""
    settings = make_settings(backend=backend, device="gpu", league=league)
    found = replace(Resolved(50, 32, "fresh", "float32", parameters=1000), **resolved)
    steps = [STEP_TIMES_S[backend] * (1 + 0.01 * (repeat % 3 - 1)) for repeat in range(5)]
    return [make_record(step, repeat, settings=settings, resolved=found) for repeat, step in enumerate(steps)]


def three(league: str = "as_shipped", torch: dict[str, Any] = CUDNN, **changes: Any) -> list[Record]:
    """Three backends, TensorFlow and JAX with TF32 everywhere; `changes` go to all of them."""
    others = [record for backend in ("tensorflow", "jax") for record in on(backend, league, **(ALL | changes))]
    return [*others, *on("torch", league, **(torch | changes))]


def cells(records: list[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.settings.backend, []).append(record)
    return found


def test_tf32_by_default_on_two_of_three_backends_is_a_caveat_of_a_comparable_row() -> None:
    (row,) = table(three())
    assert row.fastest == "tensorflow"
    assert row.caveats == (
        "TF32: tensorflow and jax use it in matrix products, torch does not; "
        "set league: matched to compare all of them in float32",
    )


def test_records_without_probes_are_compared_by_their_one_field() -> None:
    (row,) = table([*on("jax", tf32=True), *on("torch", tf32=False)])
    assert row.fastest == "jax"
    assert row.caveats[0].startswith("TF32: jax uses it in matrix products, torch does not; ")


def test_record_without_probes_is_not_compared_in_convolutions() -> None:
    assert same_work.difference(cells([*on("jax", tf32=True), *on("torch", **ALL)])) is None


def test_operations_with_the_same_users_are_listed_together() -> None:
    assert same_work.difference(cells([*on("jax", **ALL), *on("torch", **NONE)])) == (
        "jax uses it in matrix products, convolutions and recurrent layers, torch does not"
    )


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_tf32_is_not_considered_where_products_are_not_in_float32(precision: str) -> None:
    (row,) = table(three(precision=precision))
    assert (row.fastest, row.caveats) == ("tensorflow", ())


def test_operation_that_no_layer_computes_is_not_considered() -> None:
    only_convolutions_differ = {"tf32_convolution": False, "tf32_rnn": False}
    assert same_work.difference(cells(three(torch=ALL | only_convolutions_differ, operations=["matmul"]))) is None
    assert same_work.difference(cells(three(torch=ALL | only_convolutions_differ, operations=["convolution"]))) == (
        "tensorflow and jax use it in convolutions, torch does not"
    )


def test_without_a_gpu_there_is_no_caveat() -> None:
    assert same_work.difference(cells([*on("jax"), *on("torch")])) is None


def test_difference_in_league_matched_prevents_the_comparison_with_advice() -> None:
    (row,) = table(three("matched"))
    assert row.verdict.startswith(
        "not comparable: TF32 differs: tensorflow and jax use it in matrix products, torch does not; league matched "
        "turns TF32 off: remove what turns it on again"
    )
    assert row.caveats == ()


def test_in_league_matched_backends_without_tf32_are_compared() -> None:
    (row,) = table([*on("jax", "matched", **NONE), *on("torch", "matched", **NONE)])
    assert (row.fastest, row.caveats) == ("jax", ())


def test_two_runs_of_one_backend_that_differ_in_tf32_are_compared_with_a_caveat() -> None:
    found = versus(on("torch", **NONE), on("torch", **CUDNN), Rule())
    (one,) = found.comparisons
    assert one.outcome is not GateOutcome.NOT_MEASURED
    assert one.caveats[0].startswith("TF32: new uses it in convolutions and recurrent layers, base does not; ")


@pytest.mark.parametrize(
    ("operations", "expected"), [(["matmul"], False), (["convolution", "matmul"], True), (["rnn"], True), ([], False)]
)
def test_step_uses_tf32_if_an_operation_of_its_layers_does(operations: list[str], expected: bool) -> None:
    resolved = replace(Resolved(50, 32, "fresh", "float32"), operations=operations, **CUDNN)
    assert same_work.of_step(resolved) is expected


def test_step_of_unknown_layers_uses_tf32_as_its_matrix_products_do() -> None:
    resolved = replace(Resolved(50, 32, "fresh", "float32"), **ALL)
    assert same_work.of_step(resolved) is True
    assert same_work.of_step(replace(resolved, tf32_matmul=False)) is False


def test_step_of_unknown_layers_without_probes_uses_tf32_as_its_record_says() -> None:
    assert same_work.of_step(replace(Resolved(50, 32, "fresh", "float32"), tf32=True)) is True
