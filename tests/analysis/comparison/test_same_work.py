"""Differences that prevent a comparison, and those that are only a caveat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.context import named_caveats
from keras_matrix.analysis.comparison.same_work import differing, loss_path, losses_apart
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.comparison.versus import versus
from keras_matrix.analysis.history.sessions import SessionRatio
from keras_matrix.analysis.regression.gate import GateOutcome, Rule
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.schema import Learning, Record, Resolved, Times
from tests.analysis.comparison.test_table import only_row, records_of
from tests.conftest import make_record, make_settings
from tests.fakes.executor import work_as_asked

# As measured on the default matrix's workloads (docs/lab/parity.md): the two seeds furthest apart, on any backend.
SEEDS = {
    "mnist_mlp": ([2.7176, 2.2939, 2.2853, 2.2826], [2.5192, 2.2935, 2.2820, 2.2951]),
    "cifar10_cnn": ([2.3127, 2.2998, 2.2964, 2.3039], [2.3047, 2.3036, 2.3021, 2.2982]),
    "lstm": ([4.2578, 4.0939, 4.0409, 3.9476], [4.1935, 4.0891, 4.0254, 3.9345]),
    "gru": ([5.3535, 4.7935, 4.2302, 4.1384], [5.6556, 5.0277, 4.4317, 4.2196]),
}
KNOWN = SessionRatio(Estimate(1.0, 0.99, 1.01, 5), ((0.005, 10.0),))
TEN_TIMES_THE_RATE = [12.157, 14.166, 14.166, 14.166]


def without_jit(backend: str, **changes: Any) -> list[Record]:
    resolved = replace(Resolved(50, 32, "fork", "float32", parameters=1000), jit_compile=False, eager=False)
    return records_of({backend: 0.01}, resolved=replace(resolved, **changes))


def test_row_of_a_workload_without_jit_says_that_backends_run_it_differently() -> None:
    own = {"own_compile_options": ["jit_compile=False"]}
    row = only_row([*without_jit("tensorflow"), *without_jit("jax", **own)])
    assert row.caveats == (
        "no jit: tensorflow runs a graph of operations; jax runs its operations one by one: compare with jit: true, or "
        "all of them with eager: true (docs/matrix.md)",
    )
    assert set(named_caveats(row.caveats)) == {"no jit"}
    # The default of PyTorch is no caveat, nor is what all of them do.
    assert only_row([*without_jit("tensorflow"), *without_jit("torch")]).caveats == ()
    assert only_row([*without_jit("jax", **own), *without_jit("torch")]).caveats == ()
    eager = {"eager": True}
    assert only_row([*without_jit("tensorflow", **eager), *without_jit("jax", **own, **eager)]).caveats == ()


def test_keras_2_beside_keras_3_is_a_caveat_and_two_versions_of_keras_3_are_none() -> None:
    def side(keras: str) -> list[Record]:
        return [replace(on("tensorflow"), repeat=repeat, versions={"keras": keras}) for repeat in range(5)]

    (comparison,) = versus(side("2.15.0"), side("3.15.1"), Rule()).comparisons
    assert comparison.caveats == (
        "Keras differs: base 2.15.0, new 3.15.1: other code of fit, layers and optimizers, and other defaults: a ratio "
        "is that of the program as it runs on each (docs/comparing.md)",
    )
    assert set(named_caveats(comparison.caveats)) == {"Keras differs"}
    (without_interval,) = versus(side("2.15.0")[:2], side("3.15.1")[:2], Rule()).comparisons
    assert (without_interval.reason is not None, without_interval.caveats) == (True, comparison.caveats)
    (alike,) = versus(side("3.14.0"), side("3.15.1"), Rule()).comparisons
    assert alike.caveats == ()


def on(backend: str, loss: list[float | None] | None = None, **resolved: Any) -> Record:
    """A record of that backend."""
    record = make_record(settings=make_settings(backend=backend), learning=Learning(loss or []))
    assert record.resolved is not None
    return replace(record, resolved=replace(record.resolved, **resolved))


def measured_on(backend: str) -> Record:
    """A record of that backend whose samples were counted."""
    record = on(backend)
    return replace(record, times=replace(record.times, samples_per_s=100.0))


def cells(*records: Record) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.settings.backend, []).append(record)
    return found


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("parameters", (1_199_882, 1_199_880), "parameters differ: jax 1,199,882, torch 1,199,880"),
        ("trainable_parameters", (900, 901), "trainable parameters differ: jax 900, torch 901"),
        ("optimizer", ("RMSprop", "SGD"), "optimisers differ: jax RMSprop, torch SGD"),
        ("optimizer_slots", (10, 20), "optimiser slots differ: jax 10, torch 20"),
        ("optimizer_slot_bytes", (4000, 8000), "bytes of optimiser slots differ: jax 4,000, torch 8,000"),
        ("learning_rate", (0.001, 0.01), "learning rates differ: jax 0.001, torch 0.01"),
        ("forward_flops", (1000, 1025), "FLOPs per batch differ: jax 1,000, torch 1,025"),
        (
            "weight_dtypes",
            (["float32"], ["float64"]),
            "types of stored weights differ: jax float32, torch float64",
        ),
        ("samples", (300, 1000), "samples differ: jax 300, torch 1,000"),
        ("steps_per_execution", (1, 4), "steps per execution differ: jax 1, torch 4"),
    ],
)
def test_different_work_prevents_a_comparison(field: str, values: tuple[Any, Any], expected: str) -> None:
    pair = on("jax", **{field: values[0]}), on("torch", **{field: values[1]})
    assert differing(cells(*pair)) == expected
    (row,) = table(pair)
    assert (row.verdict, row.fastest) == (f"not comparable: {expected}", None)


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("own_methods", (["fit"], []), "methods of the model's own differ: jax fit, torch none"),
        ("changed_variables", (2, 10), "weights that training changed differ: jax 2, torch 10"),
        ("updates_per_step", (1.0, 2.0), "updates per step differ: jax 1, torch 2"),
    ],
)
def test_different_counted_work_prevents_a_comparison(field: str, values: tuple[Any, Any], expected: str) -> None:
    pair = [
        replace(measured_on(backend), work=replace(work_as_asked(make_settings(), 10), **{field: value}))
        for backend, value in zip(("jax", "torch"), values, strict=True)
    ]
    assert differing(cells(*pair)) == expected


def test_cell_whose_samples_are_not_proven_is_compared_with_none() -> None:
    done = work_as_asked(make_settings(), 10)
    pair = [replace(measured_on(backend), work=done) for backend in ("jax", "torch")]
    assert differing(cells(*pair)) is None
    pair[1] = replace(pair[1], times=replace(pair[1].times, samples_per_s=None))
    (row,) = table(pair)
    expected = "it is not proven that a step used all samples of its batch (torch; see the warning work_not_counted)"
    assert (differing(cells(*pair)), row.verdict, row.fastest) == (expected, f"not comparable: {expected}", None)


@pytest.mark.parametrize(("chosen", "refused"), [("auto", False), (51, True)])
def test_calibrated_steps_may_differ_between_two_sessions(chosen: int | str, refused: bool) -> None:
    expected = "steps per epoch differ: base 51, new 54"
    base, new = (
        replace(on("jax", steps_per_epoch=steps), settings=make_settings(steps_per_epoch=chosen)) for steps in (51, 54)
    )
    assert differing({"base": [base], "new": [new]}) == expected
    assert differing({"base": [base], "new": [new]}, apart=True) == (expected if refused else None)
    found = versus([base], [new], Rule(), lambda one, other: KNOWN)
    assert found.outcome is (GateOutcome.NOT_MEASURED if refused else GateOutcome.NO_WORSE)


def test_rounding_and_missing_counts_are_the_same_work() -> None:
    counted = on("jax", learning_rate=0.001, forward_flops=1000, optimizer_slots=4)
    near = on("torch", learning_rate=0.0010000000475, forward_flops=1004)
    assert differing(cells(counted, near, on("torch"))) is None
    more = differing(cells(counted, on("torch", forward_flops=1006)))
    assert more == "FLOPs per batch differ: jax 1,000, torch 1,006"
    assert differing({}) is None


def test_more_flops_of_one_backend_do_not_prevent_a_comparison() -> None:
    base, new = on("jax", forward_flops=1000), on("jax", forward_flops=1500)
    assert differing({"base": [base], "new": [new]}) is None


@pytest.mark.parametrize("workload", SEEDS)
def test_different_seeds_give_no_caveat(workload: str) -> None:
    one, other = SEEDS[workload]
    assert losses_apart(cells(on("jax", [*one]), on("torch", [*other]))) is None


def test_differing_losses_are_a_caveat_and_do_not_prevent_the_comparison() -> None:
    pair = on("jax", [*TEN_TIMES_THE_RATE]), on("torch", [*SEEDS["mnist_mlp"][1]])
    (row,) = table(pair)
    assert row.verdict == "not separable: fewer than 5 repeats give no interval"
    assert row.caveats[0].startswith("losses differ: in epoch 1 jax is at 12.2 and torch at 2.52, further apart ")


def test_constant_loss_next_to_a_falling_one_is_a_caveat() -> None:
    caveat = losses_apart(cells(on("jax", [2.3, 2.3, 2.3]), on("torch", [2.2, 1.8, 0.9])))
    assert caveat is not None
    assert "in epoch 3 jax is at 2.3 and torch at 0.9" in caveat


@pytest.mark.parametrize(("second", "has_caveat"), [(0.74, False), (0.77, True)])
def test_losses_may_differ_by_a_quarter_of_the_smaller_first_loss(second: float, has_caveat: bool) -> None:
    found = losses_apart(cells(on("jax", [1.0, 0.5]), on("torch", [1.2, second])))
    assert (found is not None) is has_caveat


def test_losses_of_two_sides_of_one_backend_are_compared() -> None:
    base = [replace(on("jax", [*SEEDS["lstm"][0]]), repeat=repeat) for repeat in range(5)]
    wrong = [replace(record, learning=Learning([4.2, 9.0, 9.0, 9.0])) for record in base]
    (parted,) = versus(base, wrong, Rule()).comparisons
    (alike,) = versus(base, base, Rule()).comparisons
    assert parted.caveats[0].startswith("losses differ: in epoch 2 base is at 4.09 and new at 9")
    assert alike.caveats == ()


def test_calibrating_process_counts_only_without_other_processes() -> None:
    looking = replace(on("jax", [1.0, 0.5]), times=Times(calibration_time_s=2.0))
    assert loss_path([looking, on("jax", [3.0, 2.0]), on("jax", [5.0, 3.0])]) == [4.0, 2.5]
    assert loss_path([looking]) == [1.0, 0.5]
    assert loss_path([on("jax")]) == []


def calibrated(backend: str, loss: list[float], steps: int) -> Record:
    """A process that trained two epochs of so many steps to calibrate."""
    asked = work_as_asked(make_settings(backend=backend), 10)
    first, *rest = asked.stretches
    work = replace(asked, stretches=[replace(first, name="calibration", steps=steps, epochs=2), *rest])
    return replace(on(backend, [*loss]), times=Times(calibration_time_s=2.0), work=work)


@pytest.mark.parametrize(("steps", "has_caveat"), [(3, True), (500, False)])
def test_losses_are_compared_after_equal_numbers_of_steps(steps: int, has_caveat: bool) -> None:
    """With one process each, all have calibrated: a fast backend has trained far more steps before its first epoch."""
    found = losses_apart(cells(calibrated("jax", [4.0, 2.0], 3), calibrated("torch", [1.0, 0.5], steps)))
    assert (found is not None) is has_caveat


def test_loss_without_scale_or_value_is_not_compared() -> None:
    assert losses_apart(cells(on("jax", [0.0, 1.0]), on("torch", [0.0, 5.0]))) is None
    assert losses_apart(cells(on("jax", [None, 1.0]), on("torch"))) is None


@pytest.mark.parametrize(("changed", "is_compared"), [(2, True), (None, False)])
def test_a_loop_of_a_program_is_compared_only_if_it_changed_weights(changed: int | None, is_compared: bool) -> None:
    def looped(backend: str) -> Record:
        record = on(backend)
        settings = replace(record.settings, workload="script:loop.py")
        work = replace(work_as_asked(record.settings, 10), changed_variables=changed)
        return replace(record, settings=settings, work=work, times=replace(record.times, samples_per_s=None))

    reason = differing({"jax": [looped("jax")], "torch": [looped("torch")]})
    assert (reason is None) == is_compared
    assert is_compared or "it is not proven" in (reason or "")
