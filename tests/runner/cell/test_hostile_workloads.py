"""The record of any workload states what it did: real processes, on each backend."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

pytestmark = pytest.mark.process
ROOT = str(Path(__file__).parents[3])
STEPS, EPOCHS, BATCH = 4, 3, 8
BACKENDS = ("tensorflow", "jax", "torch")
MISMATCH = Status.WORK_MISMATCH
QUICK = ("torch", "tensorflow")  # JAX compiles every cell for seconds: omitted work is tried on it for every change


def measured(executor: ProcessExecutor, tmp_path: Path, workload: str, **changes: Any) -> Record:
    """Return the record of one process of a workload, four steps an epoch unless changed."""
    changes = {"samples": 32, "batch_size": BATCH, "steps_per_epoch": STEPS, "epochs": EPOCHS} | changes
    settings = make_settings(workload=f"tests.workloads.hostile:{workload}", **changes)
    steps = settings.steps_per_epoch if isinstance(settings.steps_per_epoch, int) else STEPS
    return real_cell(executor, tmp_path / uuid.uuid4().hex, settings, steps)


def rules(record: Record) -> set[str]:
    """Return the rules that fired, less what a busy machine and short epochs set off."""
    ignored = {"short_epoch", "busy", "steal", "still_warming_up"}
    return {warning.partition(":")[0] for warning in record.warnings} - ignored


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("one_step", "the optimizer counted 1 of 4 updates in epoch 1"),
        ("half_the_steps", "the optimizer counted 2 of 4 updates in epoch 1"),
        ("half_of_x", "epochs: each must have the 4 steps of what fit was given, got 2"),
        ("no_steps", ""),
        ("no_steps_but_counted", ""),
        ("no_callbacks", "epochs: fit must run 1, got 0"),
        ("all_in_the_first_epoch", "the optimizer counted 0 of 4 updates in epoch 2"),
        ("source_that_ends", "the optimizer counted 2 of 4 updates in epoch 3"),
        ("outside_the_clock", "the optimizer counted 0 of 1 updates in epoch 1, and 1 outside the timed epochs"),
        ("same_batch", "the epochs: 1 of 12 batches were drawn from the feed"),
        ("quarter_of_each_batch", "the loss was taken over 2 samples in epoch 1, not over 8 (1 steps of 8)"),
        ("quarter_in_the_step", "the loss was taken over 2 samples in epoch 1, not over 8 (1 steps of 8)"),
        ("patched_keras", "the optimizer counted 1 of 4 updates in epoch 1"),
        ("no_update", "0 of 4 trainable weights changed in the epochs: the model was not trained"),
        ("all_frozen", "the model has no trainable weight; set phase: predict"),
        ("replaced_optimizer", "the model has a different optimizer after fit than before"),
    ],
)
def test_omitted_work_is_a_work_mismatch(
    executor: ProcessExecutor, tmp_path: Path, workload: str, reason: str, backend: str
) -> None:
    record = measured(executor, tmp_path, workload, backend=backend)
    if (workload, backend) == ("source_that_ends", "jax"):  # where `fit` itself fails at an epoch without a batch
        assert (record.status, "UnboundLocalError" in (record.reason or "")) == (Status.ERROR, True), record.reason
        return
    assert (record.status, reason in (record.reason or "")) == (MISMATCH, True), (record.status, record.reason)


@pytest.mark.one_backend(*QUICK)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("workload", "fired", "changes"),
    [
        ("honest", set(), {}),
        ("honest", set(), {"feed": "host_fed"}),
        ("accumulating", set(), {}),
        ("accumulating", set(), {"precision": "bfloat16", "steps_per_epoch": 300}),
        ("slow_clock", set(), {}),
        ("preset_functions", set(), {}),
        ("preset_functions", set(), {"phase": "predict"}),
        ("own_metrics", set(), {}),
        ("several_rows", set(), {"phase": "predict"}),
        ("forking", set(), {}),
        ("own_step", {"work_not_counted"}, {}),
        ("two_updates", {"updates_per_step"}, {}),
        ("gradient_of_the_last_layer", {"weights_unchanged"}, {}),
        ("eager", {"own_options"}, {}),
        ("honest", set(), {"phase": "predict"}),
        ("predicts_from_memory", {"work_not_counted"}, {"phase": "predict"}),
    ],
)
def test_unusual_but_complete_work_is_measured_with_its_caveats(
    executor: ProcessExecutor, tmp_path: Path, workload: str, fired: set[str], changes: dict[str, Any], backend: str
) -> None:
    record = measured(executor, tmp_path, workload, backend=backend, **changes)
    assert record.status in (Status.OK, Status.UNSTABLE), (record.status, record.reason, record.evidence.output_tail)
    assert rules(record) == fired, record.warnings


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("phase", ["fit", "predict"])
def test_replaced_reductions_change_no_figure(
    executor: ProcessExecutor, tmp_path: Path, backend: str, phase: str
) -> None:
    record = measured(executor, tmp_path, "replaced_reductions", backend=backend, phase=phase)
    epochs_s = record.times.epoch_times_s
    assert record.status in (Status.OK, Status.UNSTABLE), record.reason
    assert record.times.step_time_s == pytest.approx(sum(epochs_s) / len(epochs_s) / STEPS)
    assert record.times.epoch_time_median_s == pytest.approx(sorted(epochs_s)[0] / 2 + sorted(epochs_s)[1] / 2)
    assert (record.times.call_time_p50_s or 1.0) > 1e-7


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("workload", "backend"),
    [
        *((name, backend) for name in ("one_sample_in_the_step", "one_sample_uncounted") for backend in BACKENDS),
        # On JAX a step's metrics are part of its state, which this one leaves to Keras.
        ("one_sample_counted_as_all", "tensorflow"),
        ("one_sample_counted_as_all", "torch"),
    ],
)
def test_step_of_its_own_that_uses_one_sample_of_a_batch_is_a_work_mismatch(
    executor: ProcessExecutor, tmp_path: Path, workload: str, backend: str
) -> None:
    record = measured(executor, tmp_path, workload, backend=backend)
    expected = (
        "the layers of the model received 1 of the 8 samples of a step (the model overrides train_step): pass it every "
        "sample of the batch"
    )
    assert (record.status, record.reason) == (MISMATCH, expected)
    assert record.times.samples_per_s is None


@pytest.mark.one_backend(*QUICK)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "workload", ["own_step", "micro_batches", "on_twice_the_batch", "rows_in_another_dimension", "two_updates"]
)
def test_step_of_its_own_that_uses_every_sample_has_samples_per_second(
    executor: ProcessExecutor, tmp_path: Path, workload: str, backend: str
) -> None:
    record = measured(executor, tmp_path, workload, backend=backend)
    assert record.status in (Status.OK, Status.UNSTABLE), (record.reason, record.evidence.output_tail)
    assert record.work is not None
    assert record.work.received_samples == BATCH
    assert record.times.step_time_s is not None
    assert record.times.samples_per_s == pytest.approx(BATCH / record.times.step_time_s)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_step_whose_samples_are_not_known_has_no_samples_per_second_and_is_not_accused(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record = measured(executor, tmp_path, "one_by_one", backend=backend)
    assert record.status in (Status.OK, Status.UNSTABLE), (record.reason, record.evidence.output_tail)
    assert record.times.samples_per_s is None
    assert any("samples/s is not stated, and nothing is compared" in warning for warning in record.warnings)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_fewer_predictions_than_requested_are_a_work_mismatch(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record = measured(executor, tmp_path, "predicts_a_quarter", backend=backend, phase="predict")
    assert record.status is MISMATCH
    assert "1 predict calls on 8 samples each returned 2 rows in epoch 1, not 8" in (record.reason or "")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_forged_result_with_unobserved_epochs_is_refused(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record = measured(executor, tmp_path, "forged_result", backend=backend)
    expected = "bad_result: it reports 2 measured epochs, but the runner observed 0"
    assert (record.status, record.reason) == (Status.ERROR, expected)
    other = measured(executor, tmp_path, "forged_result_of_another", backend=backend)
    assert (other.status, (other.reason or "").partition(":")[0]) == (Status.ERROR, "bad_result")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_model_without_an_optimizer_is_an_error_with_advice(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record = measured(executor, tmp_path, "without_optimizer", backend=backend)
    expected = (
        "ValueError: optimizer: the model is compiled without one, so that fit cannot train it; compile it with an "
        "optimizer, or set phase: predict"
    )
    assert (record.status, record.reason) == (Status.ERROR, expected)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_options_that_ran_are_recorded_and_the_matrix_wins_where_it_sets_them(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    left = measured(executor, tmp_path, "eager", backend=backend)
    assert left.resolved is not None
    assert (left.resolved.eager, left.resolved.jit_compile) == (True, False)
    expected = (
        "own_options: the workload compiled its model with run_eagerly=True, which was used; set eager in the matrix "
        "to override it"
    )
    assert [warning for warning in left.warnings if warning.startswith("own_options")] == [expected]
    decided = measured(executor, tmp_path, "eager", backend=backend, set_by_matrix="eager")
    assert decided.resolved is not None
    assert (decided.resolved.eager, decided.resolved.jit_compile) == (False, backend == "jax")
    assert rules(decided) == set()


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_workload_that_makes_everything_eager_is_an_error_with_advice(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record = measured(executor, tmp_path, "eager_everywhere", backend=backend)
    expected = "ValueError: eager: the workload makes every function of the process run eagerly ("
    assert (record.status, (record.reason or "")[: len(expected)]) == (Status.ERROR, expected)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_compilation_and_steps_per_execution_of_the_workloads_own_are_recorded(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    compiled = measured(executor, tmp_path, "other_jit", backend=backend)
    assert compiled.resolved is not None
    assert (compiled.resolved.jit_compile, rules(compiled)) == (backend == "tensorflow", {"own_options"})
    chunked = measured(executor, tmp_path, "several_steps", backend=backend, steps_per_epoch=10)
    assert chunked.resolved is not None
    assert (chunked.resolved.steps_per_execution, chunked.resolved.steps_per_epoch) == (4, 12)
    assert chunked.status in (Status.OK, Status.UNSTABLE), chunked.reason
    refused = measured(executor, tmp_path, "several_steps", backend=backend, params={"steps": 32})
    expected = "ValueError: steps_per_execution: the workload compiles with 32, more than steps_per_epoch, 4; set"
    assert (refused.status, (refused.reason or "")[: len(expected)]) == (Status.ERROR, expected)


def test_several_steps_per_execution_are_unsupported_on_pytorch(executor: ProcessExecutor, tmp_path: Path) -> None:
    record = measured(executor, tmp_path, "several_steps", backend="torch")
    expected = "steps_per_execution: Keras on PyTorch runs one step at a time, got 4"
    assert (record.status, record.reason) == (Status.UNSUPPORTED, expected)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_samples_of_a_workload_are_counted_and_form_one_pass(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    changes = {"samples": 1000, "batch_size": 32, "steps_per_epoch": "seed", "backend": backend}
    own = measured(executor, tmp_path, "few_samples", **changes)
    assert own.resolved is not None
    assert (own.resolved.samples, own.resolved.steps_per_epoch, own.resolved.seed_steps_per_epoch) == (300, 10, 10)
    overridden = measured(executor, tmp_path, "few_samples", set_by_matrix="samples", **changes)
    assert overridden.resolved is not None
    assert (overridden.resolved.samples, overridden.resolved.seed_steps_per_epoch, rules(overridden)) == (
        1000,
        32,
        {"samples_repeated"},
    )


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_that_loss_scaling_skips_are_a_caveat(executor: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    record = measured(
        executor, tmp_path, "overflowing", backend=backend, precision="mixed_float16", epochs=6, discard=5
    )
    assert record.work is not None
    assert (record.status, rules(record)) == (Status.OK, {"loss_scaling"}), (record.reason, record.work)
    assert 0 < (record.work.skipped_updates or 0) < 6 * STEPS


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("backend", "status"), [("tensorflow", Status.ERROR), ("jax", MISMATCH), ("torch", Status.ERROR)]
)
def test_a_model_without_any_gradient_is_never_measured(
    executor: ProcessExecutor, tmp_path: Path, backend: str, status: Status
) -> None:
    record = measured(executor, tmp_path, "no_gradient", backend=backend)
    assert record.status is status, record.reason  # TensorFlow and PyTorch refuse it themselves
    if backend == "jax":
        assert record.reason == "0 of 4 trainable weights changed in the epochs: the model was not trained"


def test_a_weight_on_another_device_is_a_device_mismatch(executor: ProcessExecutor, tmp_path: Path) -> None:
    record = measured(executor, tmp_path, "weight_elsewhere", backend="torch")
    expected = "device: cpu was requested, but the workload placed the model's weights on meta"
    assert (record.status, record.reason) == (Status.DEVICE_MISMATCH, expected)


@pytest.mark.one_backend(*QUICK)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("workload", "changes", "precision"),
    [
        ("floatx_of_64_bits", ["floatx=float64 (was float32)"], "float32"),
        ("global_policy", ["dtype_policy=mixed_bfloat16 (was float32)"], "mixed_bfloat16"),
        ("policy_after_the_layers", ["dtype_policy=bfloat16 (was float32)"], "float32"),
        ("other_seed", ["keras.utils.set_random_seed=42 (was none)"], "float32"),
        (
            "layout_and_tracebacks",
            ["image_data_format=channels_first (was channels_last)", "traceback_filtering=True (was False)"],
            "float32",
        ),
    ],
)
def test_option_of_the_process_that_a_workload_changes_is_a_caveat(
    executor: ProcessExecutor, tmp_path: Path, workload: str, changes: list[str], precision: str, backend: str
) -> None:
    record = measured(executor, tmp_path, workload, backend=backend)
    assert record.status in (Status.OK, Status.UNSTABLE), (record.reason, record.evidence.output_tail)
    assert record.resolved is not None
    assert (record.resolved.own_process_options, record.resolved.precision) == (changes, precision)
    text = f"own_options: the workload changed {', '.join(changes)} for its entire process, which was used"
    assert sum(warning.startswith(text) for warning in record.warnings) == 1
    assert record.resolved.weight_dtypes == ["float32"]


@pytest.mark.parametrize(
    ("backend", "changed"),
    [
        ("jax", ["jax_enable_x64=True (was False)", "jax_default_matmul_precision=highest (was None)"]),
        ("torch", ["torch.default_dtype=torch.float64 (was torch.float32)", "torch.num_threads=3 (was "]),
        ("tensorflow", ["tensor_float_32_execution=False (was True)", "tf.config.optimizer.jit=autoclustering (was )"]),
    ],
)
def test_option_of_the_backend_that_a_workload_changes_is_a_caveat(
    executor: ProcessExecutor, tmp_path: Path, backend: str, changed: list[str]
) -> None:
    record = measured(executor, tmp_path, "backend_options", backend=backend)
    assert record.resolved is not None, record.reason
    found = record.resolved.own_process_options
    assert [text.startswith(begin) for text, begin in zip(found, changed, strict=True)] == [True] * len(changed), found


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_seed_of_the_matrix_may_be_set_again(executor: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    record = measured(executor, tmp_path, "other_seed", backend=backend, seed=42)
    assert record.resolved is not None, record.reason
    assert record.resolved.own_process_options == []


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_of_another_backend_is_an_error(executor: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    record = measured(executor, tmp_path, "other_backend", backend=backend)
    assert record.status is Status.ERROR
    assert f"but the cell's backend is {backend}; remove that call" in (record.reason or "")


@pytest.mark.parametrize(
    ("backend", "dtype", "slot_bytes"), [("jax", "float32", 8), ("tensorflow", "float64", 16), ("torch", "float64", 16)]
)
def test_types_and_bytes_are_those_of_real_arrays(
    executor: ProcessExecutor, tmp_path: Path, backend: str, dtype: str, slot_bytes: int
) -> None:
    record = measured(executor, tmp_path, "layers_of_64_bits", backend=backend)
    resolved = record.resolved
    assert resolved is not None, record.reason
    assert (resolved.layer_policies, resolved.weight_dtypes) == (["float64"], [dtype])
    assert resolved.optimizer_slot_bytes == slot_bytes * (resolved.trainable_parameters or 0)  # Adam: two slots
    text = "layers of the workload have the dtype policy float64, though precision is float32"
    text = f"{text}: it was used, with weights stored as {dtype}"
    assert any(text in warning for warning in record.warnings)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_kept_at_each_step_is_a_warning_with_its_size(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record = measured(executor, tmp_path, "keeping", backend=backend, epochs=9)
    assert record.usage is not None, record.reason
    assert record.usage.host_growth_bytes_per_step == pytest.approx(8 << 20, rel=0.1)
    (warning,) = [text for text in record.warnings if text.startswith("memory_grows")]
    assert warning.startswith("memory_grows: host memory grows by ")
    assert " MiB a step; look for tensors" in warning


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("phase", ["fit", "predict"])
def test_process_that_keeps_nothing_has_no_warning_about_its_memory(
    executor: ProcessExecutor, tmp_path: Path, backend: str, phase: str
) -> None:
    record = measured(executor, tmp_path, "honest", backend=backend, epochs=9, phase=phase)
    assert record.usage is not None, record.reason
    assert (record.usage.host_growth_bytes_per_step or 0.0) < 1 << 20
    assert not any(text.startswith("memory_grows") for text in record.warnings)
