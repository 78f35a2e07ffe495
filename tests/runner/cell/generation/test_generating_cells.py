"""Cells with `phase: generate` as real processes: tokens per second, our own loop, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.settings import Settings
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.matrix import catalog
from tests.conftest import make_settings
from tests.real_cells import real_cell

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("generation")]
PROMPT, LONGEST, BATCH, CALLS = 6, 14, 3, 2


def settings(backend: str = "jax", workload: str = "gpt2", **changes: Any) -> Settings:
    rules = catalog.load().workloads[workload].params
    params = {name: rule.default for name, rule in rules.items()}
    params |= {"prompt_length": PROMPT, "max_length": LONGEST, **changes.pop("params", {})}
    fixed = {
        "batch_size": BATCH,
        "samples": 6,
        "epochs": 3,
        "discard": 1,
        "phase": "generate",
        "steps_per_epoch": CALLS,
    }
    return make_settings(**{"backend": backend, "workload": workload, "params": params, **fixed, **changes})


def measured(executor: ProcessExecutor, tmp_path: Path, wanted: Settings, repeat: int = 1) -> Record:
    return real_cell(executor, tmp_path / cell_id(wanted), wanted, CALLS, repeat)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_every_call_continues_each_prompt_to_its_full_length(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    """Mutation: tokens per second count the tokens of the prompt, too."""
    record = measured(executor, tmp_path, settings(backend))
    assert record.status in MEASURED, record.reason
    found = record.generation
    assert (found.prompt_length, found.max_length) == (PROMPT, LONGEST)
    assert (found.own_tokens_agree, found.problem) == (True, None)
    assert record.times.tokens_per_s == pytest.approx(record.times.samples_per_s * (LONGEST - PROMPT))
    assert [stretch.samples for stretch in record.work.stretches] == [[BATCH], [BATCH * CALLS] * 3]
    assert found.weight_bytes == 4 * record.resolved.parameters
    assert found.read_weight_bytes == found.weight_bytes - 4 * 1024 * 64
    assert found.own_time_to_first_token_s > found.own_prefill_time_s > 0
    assert record.resolved.jit_compile == (backend == "jax")


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_native_code_continues_the_same_prompts_and_its_tokens_are_checked(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    """Mutation: `_work_of` chooses KerasHub's `generate()` whatever the implementation."""
    record = measured(executor, tmp_path, settings(backend, implementation="native"))
    assert record.status in MEASURED, record.reason
    assert 0 <= record.resolved.implementation_deviation <= 1e-5  # rows with a tie may differ
    assert record.times.tokens_per_s == pytest.approx(record.times.samples_per_s * (LONGEST - PROMPT))
    assert [stretch.samples for stretch in record.work.stretches] == [[BATCH], [BATCH * CALLS] * 3]
    found = record.generation
    assert (found.max_length, found.weight_bytes) == (LONGEST, 4 * record.resolved.parameters)
    assert (found.own_tokens_agree, found.own_token_time_p50_s, found.problem) == (None, None, None)


def test_quantised_weights_are_smaller_and_low_rank_updates_are_trained(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    """Mutation: `prepared` adds LoRA without quantising first."""
    int8 = settings("torch", "llama", params={"quantization": "int8"})
    found = measured(executor, tmp_path, int8, repeat=0).generation
    assert found.weight_bytes < 0.3 * 4 * 139_584
    assert found.own_tokens_agree
    assert min(found.unquantised_time_s, found.overhead_time_s) > 0  # either is longer at this size, by chance
    trained = measured(
        executor, tmp_path, settings("torch", "llama", phase="fit", params={"quantization": "int8", "lora_rank": 2})
    )
    assert trained.status in MEASURED, trained.reason
    assert trained.generation == Generation(
        None, LONGEST, trained.generation.weight_bytes, None, None, found.last_level_cache_bytes
    )
    assert found.weight_bytes < trained.generation.weight_bytes < 1.2 * found.weight_bytes  # the updates are added
    assert 0 < trained.resolved.trainable_parameters < trained.resolved.parameters / 10


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        (
            {"workload": "gemma", "params": {"size": "7b", "layers": 1024}},
            Status.UNSUPPORTED,
            "gemma: 284 billion weights: it needs at least",
        ),
        ({"jit": False}, Status.UNSUPPORTED, "jit: KerasHub always compiles generate() on jax, got false"),
        ({"params": {"prompt_length": 14}}, Status.ERROR, "gpt2: prompt_length: must be below max_length (14)"),
        ({"phase": "fit", "params": {"quantization": "int8"}}, Status.ERROR, "int8 has no trainable weights"),
        ({"params": {"preset": "no/such"}}, Status.ERROR, "gpt2: preset: no/such cannot be loaded"),
    ],
)
def test_cell_that_cannot_run_is_refused_before_its_weights_are_allocated(
    executor: ProcessExecutor, tmp_path: Path, changes: dict[str, Any], status: Status, reason: str
) -> None:
    """Mutation: `check_generates` does not compare `jit` with what KerasHub compiles."""
    record = measured(executor, tmp_path, settings(**changes))
    assert (record.status, reason in (record.reason or "")) == (status, True), record.reason
