"""A cell's files for TensorBoard, and its reports of failures; without a backend or a process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import CellResult
from keras_matrix.records.traces.request import BEGUN, Trace
from keras_matrix.runner.cell.job import Job, publish_figures
from keras_matrix.runner.cell.tensorboard import ENDED, PROFILED_STEPS, write
from keras_matrix.runner.measure.record_builder import read_result
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor

Left = Callable[..., tuple[list[str], list[int]]]


@dataclass(slots=True)
class Profiler:
    """A backend's profiler: it writes a file, and may fail after that."""

    failure: BaseException | None = None
    ending: str = ".xplane.pb"

    def start(self) -> None:
        pass

    def stop(self, path: Path) -> None:
        path.write_text("part of a profile")
        if self.failure is not None:
            raise self.failure

    def mark(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("n", "0" * 16, 0, 0, make_settings(), 1, str(tmp_path), [], None, None, board=True)


@pytest.fixture
def left(job: Job, monkeypatch: pytest.MonkeyPatch) -> Left:
    def leaving(profiler: Any, describe: Callable[[], str] | None = lambda: "{}") -> tuple[list[str], list[int]]:
        """Leave what this profiler makes; return the files there are, and the steps that were run."""
        steps: list[int] = []
        monkeypatch.setattr("keras_matrix.runner.cell.tensorboard.load", lambda backend: profiler)
        write(job, describe, steps.append)
        files = sorted(str(path.relative_to(job.folder)) for path in Path(job.folder).rglob("*") if path.is_file())
        return files, steps

    return leaving


def broken() -> str:
    raise NotImplementedError("no get_config\nin this class")


def test_description_and_a_profile_of_few_steps_are_written(job: Job, left: Left) -> None:
    assert left(Profiler()) == (["model.json", "profile/trace.xplane.pb", "undone.txt"], [PROFILED_STEPS])
    assert job.undone_path.read_text() == ""


@pytest.mark.fault("F18", mutation="the written part of a failed profile stays")
def test_failed_profile_is_removed_and_its_reason_stored(job: Job, left: Left) -> None:
    files, _ = left(Profiler(OSError(28, "No space left on device")))
    assert files == ["model.json", "undone.txt"]
    assert job.undone_path.read_text() == "profile: OSError: [Errno 28] No space left on device"


def test_model_without_a_description_lacks_only_its_graph(job: Job, left: Left) -> None:
    files, _ = left(Profiler(), broken)
    assert files == ["profile/trace.xplane.pb", "undone.txt"]
    assert job.undone_path.read_text() == "graph: NotImplementedError: no get_config"


def test_end_of_the_process_is_noted_in_advance(job: Job, left: Left) -> None:
    with pytest.raises(SystemExit):
        left(Profiler(SystemExit(1)), broken)
    assert job.undone_path.read_text().splitlines() == [
        "graph: NotImplementedError: no get_config",
        f"profile: {ENDED}",
    ]


@pytest.mark.fault("F18", mutation="a cell raises what prevents it from writing a file for TensorBoard")
def test_full_disk_does_not_end_the_process(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("keras_matrix.records.files.replace", full)
    assert left(Profiler()) == (["profile/trace.xplane.pb"], [PROFILED_STEPS])


def test_figures_are_published_early_only_if_the_process_continues(job: Job) -> None:
    result = FakeExecutor().result(job)

    def published(one: Job) -> CellResult | None:
        one.result_path.unlink(missing_ok=True)
        publish_figures(one, result)
        return read_result(one)[0]

    assert published(replace(job, board=False)) is None
    assert published(job) == result
    traced = published(replace(job, trace=Trace([1, 2], 5)))
    assert traced is not None
    assert traced.trace is not None
    assert (traced.trace.steps, traced.trace.problem) == (10, BEGUN)
    assert replace(traced, trace=None) == result
