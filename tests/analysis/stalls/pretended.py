"""Records of a pretended input pipeline: its step times follow from stated costs, with a little noise per block."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_use import InputFacts, InputUse
from keras_matrix.records.instruments.stall_arms import ArmName, arm_of, arms_of
from keras_matrix.records.schema import Record, Resolved, Times
from keras_matrix.records.settings import PIPELINE, Settings
from tests.conftest import MACHINE, make_record, make_settings

STEPS, EPOCHS, BATCH = 20, 3, 32
PARAMS = {
    "dataset_path": "images",
    "image_size": 224,
    "input_workers": 2,
    "worker_kind": "thread",
    "prefetch": 2,
    "cache": "none",
    "decoder": "pil",
    "decode_scale": "full",
    "preprocess": "device",
}


@dataclass(frozen=True, slots=True)
class Pretended:
    """The costs of a pipeline: seconds per step of compute and copy; per sample of fetching and preparing.

    `cold_fetch_s` replaces `fetch_s` on a cold page cache. `lock` limits the CPUs of preparation, `per_step` storage.
    """

    compute_s: float = 0.040
    copy_s: float = 0.0
    workers: int = 2
    kind: str = "thread"
    fetch_s: float = 0.0001
    fetch_cpu_s: float = 0.00005
    cold_fetch_s: float | None = None
    prepare_s: float = 0.0009
    prepare_cpu_s: float = 0.0009
    wait_share: float | None = None
    storage_bytes: int = 0
    reads: int = 0
    cores: int = 2
    compute_cpu_s: float = 0.001
    noise: float = 0.004

    def step_s(self, arm: ArmName) -> float:
        """Return the time of a step in an arm, by the definition of the pipeline."""
        ready_s = self.compute_s + (0.0 if arm is ArmName.SYNTHETIC else self.copy_s)
        if arm in (ArmName.SYNTHETIC, ArmName.HOST):
            return ready_s
        making_s = BATCH * (self.fetched_s(arm) + self.prepare_s) / max(1, self.workers)
        return max(ready_s, making_s) if self.workers else ready_s + making_s

    def fetched_s(self, arm: ArmName) -> float:
        """Return the time of fetching a sample in an arm; the timed one is cold."""
        return self.fetch_s if self.cold_fetch_s is None or arm is ArmName.WARM else self.cold_fetch_s

    def use(self, arm: ArmName, step_s: float) -> InputUse | None:
        """Return what a process of this arm measured of its input."""
        total_s, batches = step_s * STEPS * EPOCHS, STEPS * EPOCHS
        facts = InputFacts("grain", "folder", self.workers, self.kind, 2, "pil", "none", 5000, 500_000_000, 5000)
        if arm in (ArmName.SYNTHETIC, ArmName.HOST):
            return InputUse(facts=facts, batch_size=BATCH)
        per_sample_cpu_s = self.fetch_cpu_s + self.prepare_cpu_s
        use = InputUse(
            facts=facts,
            batch_size=BATCH,
            cpu_time_s=(self.compute_cpu_s + BATCH * per_sample_cpu_s) * batches,
            wall_time_s=total_s,
            file_read_bytes=BATCH * 100_000 * batches,
            storage_read_bytes=self.storage_bytes * batches if arm is not ArmName.WARM else 0,
            storage_reads=self.reads * batches if arm is not ArmName.WARM else 0,
            queue_sizes=[0.5] * 100,
            queue_capacity=4,
        )
        if arm is not ArmName.TIMED:
            return use
        samples = batches * BATCH
        waited = 1 - self.compute_s / step_s if self.wait_share is None else self.wait_share
        return replace(
            use,
            batches=batches,
            wait_times_s=[waited * step_s * STEPS] * EPOCHS,
            fetch_wall_time_s=self.fetched_s(arm) * samples,
            fetch_cpu_time_s=self.fetch_cpu_s * samples,
            prepare_wall_time_s=self.prepare_s * samples,
            prepare_cpu_time_s=self.prepare_cpu_s * samples,
            fetched_bytes=100_000 * samples,
            timers_cpu_time_s=0.00002 * batches,
        )


def base_settings(**changes: Any) -> Settings:
    """Return the settings of the warm arm of a pretended analysis."""
    return make_settings(workload="finetune", params=PARAMS, batch_size=BATCH, feed=PIPELINE, **changes)


def records(
    pipeline: Pretended, *, blocks: int = 6, cold: bool = True, settings: Settings | None = None, seed: int = 0
) -> list[Record]:
    """Return the records of every arm in every block."""
    noise = random.Random(seed)
    base = settings or base_settings()
    pipeline = pipeline if cold else replace(pipeline, cold_fetch_s=None, storage_bytes=0, reads=0)
    return [
        record
        for repeat in range(blocks)
        for own in arms_of(base, cold=cold)
        for record in _record(pipeline, own, repeat, 1 + noise.gauss(0, pipeline.noise))
    ]


def _record(pipeline: Pretended, own: Settings, repeat: int, factor: float) -> Iterator[Record]:
    arm = arm_of(own)
    step_s = pipeline.step_s(arm) * factor
    yield make_record(
        settings=own,
        cell_id=cell_id(own),
        repeat=repeat,
        machine=replace(MACHINE, logical_cpus=pipeline.cores, memory_bytes=8 << 30),
        resolved=Resolved(STEPS, STEPS, "fork", "float32", parameters=1000, cpus=pipeline.cores),
        times=Times(step_time_s=step_s, epoch_times_s=[step_s * STEPS] * EPOCHS),
        input=pipeline.use(arm, step_s),
    )
