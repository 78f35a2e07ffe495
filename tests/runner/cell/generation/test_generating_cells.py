"""Cells with `phase: generate` as real processes: tokens per second, our own loop, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import KERAS_HUB, TRAINING_BACKENDS
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
WEIGHTS = 139_584  # of llama and mistral
CACHE_NUMBERS = 2 * BATCH * 2 * LONGEST * 2 * 16  # of keys and values: two layers with two heads of 16 numbers


class HubExecutor(ProcessExecutor):
    """Forks cells from servers that have imported KerasHub."""

    def _server_command(self, command: list[str]) -> list[str]:
        *_, connection, backend = command
        script = Path(__file__).with_name("hub_server.py")
        return [command[0], "-P", str(script), connection, backend] if backend else command


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    made = HubExecutor(start="fork", mark=uuid.uuid4().hex)
    yield made
    made.close()


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


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_every_call_continues_each_prompt_to_its_full_length(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    """Mutation: tokens per second count the tokens of the prompt, too."""
    record = measured(executor, tmp_path, settings(backend))
    assert record.status in MEASURED, record.reason
    assert record.versions[KERAS_HUB] == metadata.version(KERAS_HUB)
    found = record.generation
    assert (found.prompt_length, found.max_length) == (PROMPT, LONGEST)
    assert (found.own_tokens_agree, found.problem) == (True, None)
    assert record.times.tokens_per_s == pytest.approx(record.times.samples_per_s * (LONGEST - PROMPT))
    assert [stretch.samples for stretch in record.work.stretches] == [[BATCH], [BATCH * CALLS] * 3]
    assert found.weight_bytes == 4 * record.resolved.parameters
    assert found.read_weight_bytes == found.weight_bytes - 4 * 1024 * 64
    assert found.own_time_to_first_token_s > found.own_prefill_time_s > 0
    assert record.resolved.jit_compile == (backend == "jax")


@pytest.mark.one_backend
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


@pytest.mark.nightly(why="two cells of a quantised model")
def test_quantised_weights_are_smaller_and_low_rank_updates_are_trained(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    """Mutation: `prepared` adds LoRA without quantising first."""
    int8 = settings("torch", "llama", params={"quantization": "int8"})
    found = measured(executor, tmp_path, int8, repeat=0).generation
    assert found.weight_bytes < 0.3 * 4 * WEIGHTS
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


def on_backends(always: str, *values: Any, among: Sequence[str] = TRAINING_BACKENDS) -> list[Any]:
    """Return a case on each backend: for every change on the one named, if any, in the nightly run on the others."""
    return [pytest.param(one, *values, marks=() if one == always else pytest.mark.nightly) for one in among]


MODES = [
    *on_backends("tensorflow", "bfloat16", {"precision": "bfloat16"}),
    *on_backends("", "float64", {"precision": "float64"}, among=("tensorflow", "torch")),
    *on_backends("torch", "int4", {"params": {"quantization": "int4"}}),
    *on_backends("", "float8", {"params": {"quantization": "float8"}}),
]


@pytest.mark.parametrize(("backend", "mode", "changes"), MODES)
def test_weights_and_cache_have_the_sizes_of_their_precision(
    executor: ProcessExecutor, tmp_path: Path, backend: str, mode: str, changes: dict[str, Any]
) -> None:
    """Mutations: the cache is counted in float32; `prepared` quantises to int8 whatever the mode; the positions of
    Mistral's sliding window have 64 bits in float64.
    """
    record = measured(executor, tmp_path, settings(backend, "mistral", **changes), repeat=0)
    assert record.status in MEASURED, record.reason
    found = record.generation
    bytes_per_number = {"bfloat16": 2, "float64": 8}.get(mode, 4)
    assert (found.cache_bytes, found.own_tokens_agree) == (bytes_per_number * CACHE_NUMBERS, True)
    least, most = {
        "bfloat16": (2 * WEIGHTS, 2 * WEIGHTS),
        "float64": (8 * WEIGHTS, 8 * WEIGHTS),
        "int4": (WEIGHTS / 2, 0.7 * WEIGHTS),  # two in a byte, with scales
        "float8": (4 * WEIGHTS, 6 * WEIGHTS),  # float32, with scales and their history
    }[mode]
    assert least <= found.weight_bytes <= most
    assert (found.unquantised_time_s is None) == (mode in ("bfloat16", "float64"))


@pytest.mark.parametrize("backend", on_backends("torch"))
def test_low_rank_updates_of_weights_in_bfloat16_are_trained(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    """Mutation: `prepared` adds LoRA to quantised models alone; labels are rounded to bfloat16: 511 to 512."""
    every_token = {"batch_size": 64, "samples": 256}
    fit = settings(backend, "mistral", phase="fit", precision="bfloat16", params={"lora_rank": 4}, **every_token)
    record = measured(executor, tmp_path, fit)
    assert record.status in MEASURED, record.reason
    updates, weights = record.resolved.trainable_parameters, record.resolved.parameters
    assert 0 < updates < weights / 5
    assert record.generation.weight_bytes == 2 * (weights - updates) + 4 * updates  # Keras has updates in float32


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        (
            {"workload": "gemma", "params": {"size": "7b", "layers": 1024}},
            Status.UNSUPPORTED,
            "gemma: 284 billion weights: it needs at least",
        ),
        ({"jit": False}, Status.UNSUPPORTED, "jit: KerasHub always compiles generate() on jax, got false"),
        (
            {"precision": "float64"},
            Status.UNSUPPORTED,
            "precision: KerasHub's generate() mixes integers of 32 and 64 bits, which JAX refuses, on jax in float64",
        ),
        (
            {"backend": "torch", "jit": True},
            Status.UNSUPPORTED,
            "jit: KerasHub does not compile generate() on torch, got true",
        ),
        ({"params": {"prompt_length": 14}}, Status.ERROR, "gpt2: prompt_length: must be below max_length (14)"),
        ({"phase": "fit", "params": {"quantization": "int8"}}, Status.ERROR, "int8 has no trainable weights"),
        ({"params": {"preset": "no/such"}}, Status.ERROR, "gpt2: preset: must be a folder, got no/such"),
    ],
)
def test_cell_that_cannot_run_is_refused_before_its_weights_are_allocated(
    executor: ProcessExecutor, tmp_path: Path, changes: dict[str, Any], status: Status, reason: str
) -> None:
    """Mutation: `check_generates` does not compare `jit` with what KerasHub compiles."""
    record = measured(executor, tmp_path, settings(**changes))
    assert (record.status, reason in (record.reason or "")) == (status, True), record.reason
