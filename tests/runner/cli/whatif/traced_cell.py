"""A traced cell of two workers without processes: its trace is a stored graph, its speed follows from a true link."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.whatif.graph import LinkCalibration
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.records.fc import communication
from keras_matrix.records.settings import Settings
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head, Span, Track, TrackKind
from keras_matrix.records.traces.request import NATIVE_NAME, TRACE_NAME, Traced
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.whatif import source
from tests.fakes.executor import PRETENDED, FakeExecutor
from tests.runner.whatif.graphs import data_parallel

MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 20}
backends: [torch]
cells:
  - {workload: fc, mode: fc_data, workers: 2, level: 3, weight_size: 512, bucket_cap_mb: 0.5, trace: {steps: 3}}
"""
LINK = LinkCalibration(0.5e-3, 4e-9, 2, "a true link")
WRONG_TIMES = [
    {"operation": "all_reduce", "ranks": 2, "bytes": size, "seconds": 2.4e-3 + 2.1e-9 * size} for size in (0, 10**6)
]


def true_step_s(settings: Settings) -> float:
    """The time of a step with these buckets; a fused block of layers takes 0.7 of its time."""
    graph = data_parallel(LINK)
    params = settings.params
    buckets = str(params.get("buckets") or "1,1,1,1")
    choices = [registry.read(f"tensor_fusion={buckets},")] if params["workers"] != 1 else []
    if fused := params.get("fuse"):
        choices.append(registry.read(f"op_fusion={','.join(f'{one}:0.7' for one in str(fused).split(','))}"))
    if params["workers"] == 1:
        choices.insert(0, registry.read("workers=1"))
    return step_time_s(registry.apply(graph, choices))


def executor(true_s: Callable[[Settings], float] = true_step_s) -> FakeExecutor:
    """An executor whose cells of the workload `fc` are as fast as the true link lets them be, with noise of 0.2 %."""

    def time_s(settings: Settings, repeat: int) -> float:
        return true_s(settings) * (1 + 0.002 * ((repeat * 7 + len(str(settings.params))) % 5 - 2))

    def behave(job: Job) -> Outcome:
        result = FakeExecutor(step_time_s=time_s).result(job)
        if job.trace is not None:
            write_trace(job.traced_path, job.trace.all_steps)
            result = replace(result, trace=Traced(job.trace.all_steps, job.traced_path.name, native_bytes=1000))
        write_result(job, result)
        return replace(PRETENDED, exit_code=0, wall_time_s=1.0, start_time_s=0.1, parent_cpu_time_s=0.001)

    return FakeExecutor(step_time_s=time_s, behaviours={"fc": behave})


def write_trace(folder: Path, steps: int) -> None:
    """Write the files of a trace."""
    native = folder / NATIVE_NAME
    native.mkdir(parents=True)
    spans = [Span(Track(0, TrackKind.STEPS), f"step {n}", "step", n * 1000, 1000, step=n) for n in range(1, steps + 1)]
    neutral.write(folder / TRACE_NAME, Head("torch", 2, "cpu", steps), spans)
    source.write(data_parallel(LINK), native)
    (native / communication.NAME).write_text(json.dumps([]))


def runner(*arguments: str, fake: FakeExecutor | None = None) -> int:
    """Run the command line without a process."""
    return main([*arguments], Seams(executor=fake or executor()))
