"""Profilers are started and stopped around the requested steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from keras_matrix.models.profiling import CLOCK_MARKS, XPlaneProfiler, load, record_epochs, recorded
from keras_matrix.records.traces.request import CLOCK, STEP, TraceError, TraceOrder


class Telling:
    """A profiler that only notes what happens to it."""

    ending = ".json"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self, path: Path) -> None:
        self.calls.append(f"stop {path.name}")

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        self.calls.append("clock" if name.startswith(CLOCK) else name)
        yield

    def step(self, number: int) -> AbstractContextManager[None]:
        return self.mark(f"{STEP}{number}")

    def scope(self, name: str) -> None:
        return None


def test_requested_epochs_are_recorded_in_separate_files_with_consecutive_steps() -> None:
    profiler = Telling()
    record_epochs(profiler, TraceOrder("folder", [2, 4], 2, worker=1), lambda: profiler.calls.append("step"))
    begun = ["start", *["clock"] * CLOCK_MARKS]
    assert profiler.calls == [
        *("step", "step"),
        *(*begun, "kbm:step:1", "step", "kbm:step:2", "step", "stop epoch2.worker1.json"),
        *("step", "step"),
        *(*begun, "kbm:step:3", "step", "kbm:step:4", "step", "stop epoch4.worker1.json"),
    ]


def test_profiler_is_stopped_if_the_recorded_work_fails() -> None:
    profiler = Telling()
    with pytest.raises(ZeroDivisionError), recorded(profiler, Path("mine.json")):
        raise ZeroDivisionError
    assert profiler.calls[-1] == "stop mine.json"


def test_unknown_backend_has_no_profiler() -> None:
    with pytest.raises(TraceError, match="profiler_unavailable: theano: "):
        load("theano")


def test_a_backend_that_does_not_train_has_no_profiler_and_says_which_have_one() -> None:
    """Mutation: the module that is missing is named."""
    text = "profiler_unavailable: only backends that train have a profiler (tensorflow, jax, torch), got openvino"
    with pytest.raises(TraceError, match=re.escape(text)):
        load("openvino")


def test_single_file_of_a_profiler_is_moved_and_its_folder_removed(tmp_path: Path) -> None:
    folders, target = [], tmp_path / "epoch1.worker0.xplane.pb"

    def write_file() -> None:
        deep = Path(folders[0]) / "plugins" / "profile"
        deep.mkdir(parents=True)
        (deep / "host.xplane.pb").write_bytes(b"profile")

    profiler = XPlaneProfiler(folders.append, write_file)
    profiler.start()
    profiler.stop(target)
    assert target.read_bytes() == b"profile"
    assert not Path(folders[0]).exists()


@pytest.mark.parametrize("count", [0, 2])
def test_profiler_without_exactly_one_file_raises_and_leaves_no_trace(tmp_path: Path, count: int) -> None:
    folders, target = [], tmp_path / "epoch1.worker0.xplane.pb"

    def write_files() -> None:
        for number in range(count):
            (Path(folders[0]) / f"{number}.xplane.pb").touch()

    profiler = XPlaneProfiler(folders.append, write_files)
    profiler.start()
    with pytest.raises(TraceError, match=f"the profiler left {count} files that end in"):
        profiler.stop(target)
    assert (target.exists(), Path(folders[0]).exists()) == (False, False)


def test_folder_of_a_profiler_that_fails_to_start_is_removed() -> None:
    folders: list[str] = []

    def begin(folder: str) -> None:
        folders.append(folder)
        raise RuntimeError("only one at a time")

    with pytest.raises(RuntimeError, match="only one"):
        XPlaneProfiler(begin, lambda: None).start()
    assert [Path(folder).exists() for folder in folders] == [False]
