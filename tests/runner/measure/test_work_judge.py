"""The status derived from a process's counts. Pure, so every case is a value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_use import InputUse
from keras_matrix.records.instruments.work_done import WorkDone
from keras_matrix.records.schema import CellResult, DeviceProof, Resolved, Status
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.evidence import mismatch, misplaced, option_caveats, work_caveats
from keras_matrix.runner.measure.judge import judge
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor, work_as_asked

STEPS = 10
SETTINGS = make_settings()
JOB = Job("nonce", cell_id(SETTINGS), 0, 0, SETTINGS, STEPS, "/nowhere", [], None, None)


def result_of(work: WorkDone | None, settings: Settings = SETTINGS) -> CellResult:
    return replace(FakeExecutor().result(replace(JOB, settings=settings)), work=work)


def counted(**changes: Any) -> WorkDone:
    """Requested work, with changes to its only stretch or to the work."""
    work = work_as_asked(SETTINGS, STEPS)
    stretch = replace(work.stretches[0], **{k: v for k, v in changes.items() if hasattr(work.stretches[0], k)})
    made = sum(u or 0 for u in [*stretch.updates, *stretch.skipped_updates])
    updates = None if None in stretch.updates else made / (STEPS * len(stretch.updates))
    whole = {key: value for key, value in changes.items() if hasattr(work, key) and not hasattr(stretch, key)}
    skipped = sum(stretch.skipped_updates)
    return replace(work, **{"stretches": [stretch], "updates_per_step": updates, "skipped_updates": skipped} | whole)


def found(work: WorkDone) -> str | None:
    return mismatch(result_of(work), SETTINGS)


def warned(work: WorkDone) -> list[str]:
    return [caveat.partition(":")[0] for caveat in work_caveats(result_of(work), SETTINGS)]


def test_samples_are_those_of_the_batches_of_the_workload_s_own_source() -> None:
    work = counted(samples=[STEPS * 8] * len(counted().stretches[0].samples))
    resolved = Resolved(STEPS, STEPS, "fresh", "float32", batch_size=8)
    own = replace(result_of(work), resolved=resolved, input=InputUse(batch_size=8))
    assert (mismatch(own, SETTINGS), work_caveats(own, SETTINGS)) == (None, [])
    assert "over 80 samples in epoch 1, not over 320" in (mismatch(replace(own, input=None), SETTINGS) or "")


@pytest.mark.parametrize(
    ("changes", "samples", "call", "expected"),
    [
        ({}, 320, "fit a.py:1", []),
        ({"updates": [0] * 4, "skipped_updates": [STEPS] * 4}, 320, "fit a.py:1", ["loss_scaling"]),
        ({"updates": [2 * STEPS] * 4}, 320, "fit a.py:1", ["updates_per_step"]),
        ({"updates": [STEPS // 2] * 4}, 320, "fit a.py:1", ["updates_per_step"]),
        ({"optimizer_replaced": True}, 320, "fit a.py:1", ["work_not_counted"]),
        ({"changed_variables": 1, "trainable_variables": 2}, 320, "fit a.py:1", ["weights_unchanged"]),
        ({"changed_variables": None}, None, "steps a.py:1", ["work_not_counted"]),
        ({}, None, "steps a.py:1", ["samples_not_counted"]),
        ({}, None, "fit a.py:1", ["samples_not_counted"]),
        ({"changed_variables": None, "phase": "predict"}, None, "evaluate a.py:1", ["samples_not_counted"]),
    ],
)
def test_work_of_a_program_has_the_caveats_of_other_work(
    changes: dict[str, Any], samples: int | None, call: str, expected: list[str]
) -> None:
    phase = changes.get("phase", "fit")
    settings = replace(SETTINGS, workload="script:a.py", phase=phase)
    resolved = Resolved(STEPS, STEPS, "fresh", "float32", samples=samples, call=call)
    caveats = work_caveats(replace(result_of(counted(**changes)), resolved=resolved), settings)
    assert [caveat.partition(":")[0] for caveat in caveats] == expected
    assert ("a loop of the program's own" in "".join(caveats)) == (
        expected == ["samples_not_counted"] and "steps" in call
    )


def test_requested_work_has_no_caveat() -> None:
    assert (found(counted()), warned(counted())) == (None, [])


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (counted(updates=[10, 10, 9, 10]), "the epochs: the optimizer counted 9 of 10 updates in epoch 3"),
        (counted(updates=[40, 0, 0, 0]), "the epochs: the optimizer counted 0 of 10 updates in epoch 2"),
        (counted(updates=[15, 15, 15, 15]), "the epochs: the optimizer counted 15 of 10 updates in epoch 1"),
        (
            counted(samples=[320, 320, 80, 320]),
            "the epochs: the loss was taken over 80 samples in epoch 3, not over 320 (10 steps of 32)",
        ),
        (counted(batches_drawn=39), "the epochs: 39 of 40 batches were drawn from the feed"),
        (counted(batches_drawn=45), "the epochs: 45 batches were drawn from the feed, not 40"),
        (counted(changed_variables=0, optimizer_state_changed=False), "0 of 2 trainable weights changed"),
        (
            counted(changed_variables=0, optimizer_state_changed=False, changed_at_high_rate=False),
            "0 of 2 trainable weights changed",
        ),
        (counted(trainable_variables=0, changed_variables=0), "the model has no trainable weight"),
        (
            counted(updates=[0] * 4, updates_outside=40),
            "the epochs: the optimizer counted 0 of 10 updates in epoch 1, and 40 outside the timed epochs",
        ),
        (counted(optimizer_replaced=True), "the model has a different optimizer after fit than before"),
        (counted(updates=[0] * 4, changed_variables=0), "0 of 2 trainable weights changed"),
        (counted(updates=[None] * 4, changed_variables=0), "0 of 2 trainable weights changed"),
    ],
)
def test_work_other_than_requested_is_a_mismatch(work: WorkDone, expected: str) -> None:
    assert (found(work) or "")[: len(expected)] == expected
    verdict = judge(JOB, Outcome(exit_code=0), result_of(work), None)
    assert verdict.status is Status.WORK_MISMATCH


@pytest.mark.parametrize(
    ("work", "rules"),
    [
        (counted(batches_drawn=44), []),  # within what Keras looks ahead
        (counted(batches_drawn=100, lookahead=None), []),  # a prefetching thread decides
        (counted(batches_drawn=None), []),
        (counted(updates_outside=3), []),  # what is trained before the epochs is not of them
        (counted(updates=[20] * 4), ["updates_per_step"]),
        (counted(samples=[640] * 4, updates=[20] * 4), ["updates_per_step"]),
        (counted(updates=[10, 8, 10, 10], skipped_updates=[0, 2, 0, 0]), ["loss_scaling"]),
        (counted(updates=[0] * 4, skipped_updates=[10] * 4, changed_variables=0), ["loss_scaling"]),
        (counted(updates=[None] * 4, own_methods=["train_step"]), ["work_not_counted"]),
        (counted(updates=[0] * 4, own_methods=["train_step"]), ["work_not_counted"]),
        (counted(samples=[0] * 4, own_methods=["train_step"]), ["work_not_counted"]),
        (counted(samples=[10] * 4, samples_per_step=1.0, own_methods=["train_step"]), ["work_not_counted"]),
        (counted(changed_variables=1), ["weights_unchanged"]),
        (counted(changed_variables=0), ["weights_unchanged"]),
        (
            counted(changed_variables=0, optimizer_state_changed=False, changed_at_high_rate=True),
            ["weights_unchanged"],
        ),
    ],
)
def test_uncounted_work_is_a_caveat(work: WorkDone, rules: list[str]) -> None:
    assert (found(work), warned(work)) == (None, rules)


def test_one_sample_per_step_is_accepted_only_for_an_overridden_train_step() -> None:
    assert found(counted(samples=[10] * 4)) is not None


def test_samples_of_a_part_of_the_steps_are_a_mismatch() -> None:
    expected = "the epochs: the loss was taken over 480 samples in epoch 1, not over 320 (10 steps of 32)"
    assert (found(counted(samples=[480] * 4)), found(counted(samples=[640] * 4))) == (expected, None)


def test_samples_without_a_count_are_a_caveat() -> None:
    work = counted(samples=[None] * 4, samples_per_step=None)
    assert (found(work), warned(work)) == (None, ["work_not_counted"])
    assert found(replace(work, own_methods=["train_step"])) is None


def test_weights_that_were_not_compared_are_not_a_mismatch() -> None:
    assert found(counted(changed_variables=None, optimizer_state_changed=None)) is None


def test_one_sample_per_step_is_uncounted_only_for_overridden_methods() -> None:
    assert warned(counted(samples_per_step=1.0)) == []
    assert warned(counted(samples_per_step=1.0, own_methods=["train_step"])) == ["work_not_counted"]


def test_caveats_concern_only_the_epochs() -> None:
    work = counted(samples=[None] * 4, updates=[8] * 4, skipped_updates=[2] * 4)
    before = replace(work.stretches[0], name="first_step", steps=1, epochs=1, samples=[32])
    found = work_caveats(result_of(replace(work, stretches=[before, *work.stretches])), SETTINGS)
    assert [caveat.partition(" had")[0].partition(" a step")[0] for caveat in found] == [
        "work_not_counted: the samples of",
        "loss_scaling: 8 of 40 steps",
    ]


def test_batches_of_one_sample_are_counted() -> None:
    settings = make_settings(batch_size=1)
    work = replace(work_as_asked(settings, STEPS), own_methods=["fit"])
    assert work_caveats(result_of(work, settings), settings) == []


def test_several_rows_per_sample_are_predictions() -> None:
    settings = make_settings(phase="predict")
    work = work_as_asked(settings, STEPS)
    for rows, fits in ((1600, True), (320, True), (160, False), (480, False), (0, False)):
        found = replace(work, stretches=[replace(work.stretches[0], samples=[rows] * 4)])
        assert (mismatch(result_of(found, settings), settings) is None) is fits, rows


def test_predict_calls_are_counted_by_the_rows_they_return() -> None:
    settings = make_settings(phase="predict")
    work = work_as_asked(settings, STEPS)
    assert mismatch(result_of(work), settings) is None
    few = replace(work, stretches=[replace(work.stretches[0], samples=[320, 320, 319, 320])])
    expected = "the epochs: 10 predict calls on 32 samples each returned 319 rows in epoch 3, not 320"
    assert mismatch(result_of(few), settings) == expected
    own = replace(work, own_methods=["predict_on_batch"])
    assert work_caveats(result_of(own), settings) == [
        "work_not_counted: the model overrides predict_on_batch: the computation of a call is not known"
    ]


@pytest.mark.parametrize("field", ["weight_platforms", "output_platforms"])
def test_weights_or_output_on_another_platform_are_a_device_mismatch(field: str) -> None:
    settings = make_settings(device="gpu")
    job = replace(JOB, settings=settings, cell_id=cell_id(settings))
    result = result_of(replace(work_as_asked(settings, STEPS), **{field: ["cpu", "gpu"]}), settings)
    result = replace(result, device=DeviceProof("gpu", "gpu:0", 1))
    what = field.partition("_")[0]
    assert what[:6] in (misplaced(result, "gpu") or "")
    assert judge(job, Outcome(exit_code=0), result, None).status is Status.DEVICE_MISMATCH


def test_options_set_by_a_workload_are_a_caveat_with_the_matrix_keys() -> None:
    resolved = Resolved(10, 10, "fork", "float32", own_compile_options=["run_eagerly=True", "jit_compile=True"])
    assert option_caveats(resolved, SETTINGS) == [
        "own_options: the workload compiled its model with run_eagerly=True, jit_compile=True, which was used; set "
        "eager, jit in the matrix to override it"
    ]


def test_options_changed_during_training_are_a_caveat() -> None:
    wanted = make_settings(workload="mine:build", set_by_matrix="eager")
    resolved = Resolved(10, 10, "fork", "float32", eager=True, steps_per_execution=1)
    expected = (
        "own_options: eager was False before training and True after it: the workload sets run_eagerly during "
        "training; remove that code"
    )
    assert option_caveats(resolved, wanted) == [expected]
    assert len(option_caveats(replace(resolved, steps_per_execution=4), wanted)) == 2
    assert option_caveats(replace(resolved, eager=False), wanted) == []
    assert option_caveats(replace(resolved, eager=None, steps_per_execution=None), wanted) == []
    own = replace(resolved, own_compile_options=["run_eagerly=True"])
    assert [caveat.partition(" in the")[0] for caveat in option_caveats(own, SETTINGS)] == [
        "own_options: the workload compiled its model with run_eagerly=True, which was used; set eager"
    ]


def test_repeated_samples_are_a_caveat_only_if_the_matrix_sets_samples() -> None:
    resolved = Resolved(10, 10, "fork", "float32", available_samples=300)
    own = make_settings(workload="mine:build", samples=1000)
    assert option_caveats(resolved, own) == []
    wanted = replace(own, set_by_matrix="samples")
    assert option_caveats(replace(resolved, available_samples=1000), wanted) == []
    assert option_caveats(resolved, wanted) == [
        "samples_repeated: samples is 1000, but the workload has 300, which were repeated"
    ]


def test_options_of_the_process_and_own_policies_are_caveats_with_the_keys_to_set() -> None:
    changed = ["floatx=float64 (was float32)", "keras.utils.set_random_seed=42 (was none)", "epsilon=1e-05 (was 1e-07)"]
    resolved = Resolved(10, 10, "fork", "float32", own_process_options=changed)
    assert option_caveats(resolved, make_settings()) == [
        f"own_options: the workload changed {', '.join(changed)} for its entire process, which was used; remove that "
        "code, and set precision, seed in the matrix"
    ]
    own = Resolved(10, 10, "fork", "float32", layer_policies=["float32", "float64"], weight_dtypes=["float32"])
    assert option_caveats(own, make_settings()) == []  # the catalog's workloads choose theirs for all backends alike
    (caveat,) = option_caveats(own, make_settings(workload="my_module:build"))
    assert "dtype policy float64, though precision is float32" in caveat
    assert "with weights stored as float32" in caveat
