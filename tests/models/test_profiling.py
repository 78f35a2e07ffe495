"""Profilers, started and stopped round the steps that are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keras_matrix.models.profiling import CLOCK_MARKS, load, record_epochs, recorded
from keras_matrix.models.profiling.folder import Folder
from keras_matrix.records.traces.request import CLOCK, TraceError, TraceOrder


class Telling:
    """A profiler that only notes what happens to it."""

    ending = ".json"

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def stop(self, path: Path) -> None:
        self.told.append(f"stop {path.name}")

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        self.told.append("clock" if name.startswith(CLOCK) else name)
        yield

    def scope(self, name: str) -> None:
        return None


def test_epochs_that_are_asked_for_are_recorded_each_in_a_file_and_their_steps_numbered_through() -> None:
    profiler = Telling()
    record_epochs(profiler, TraceOrder("folder", [2, 4], 2, worker=1), lambda: profiler.told.append("step"))
    begun = ["start", *["clock"] * CLOCK_MARKS]
    assert profiler.told == [
        *("step", "step"),
        *(*begun, "kbm:step:1", "step", "kbm:step:2", "step", "stop epoch2.worker1.json"),
        *("step", "step"),
        *(*begun, "kbm:step:3", "step", "kbm:step:4", "step", "stop epoch4.worker1.json"),
    ]


def test_a_profiler_is_stopped_whatever_becomes_of_what_it_records() -> None:
    profiler = Telling()
    with pytest.raises(ZeroDivisionError), recorded(profiler, Path("mine.json")):
        raise ZeroDivisionError
    assert profiler.told[-1] == "stop mine.json"


def test_a_backend_without_a_profiler_has_none() -> None:
    with pytest.raises(TraceError, match="profiler_unavailable: theano: "):
        load("theano")


def test_the_one_file_that_a_profiler_leaves_is_taken_and_its_folder_goes(tmp_path: Path) -> None:
    folder, target = Folder(), tmp_path / "epoch1.worker0.xplane.pb"
    with folder.kept_if_begun() as path:
        deep = Path(path) / "plugins" / "profile"
    with folder.left_at(target):
        deep.mkdir(parents=True)
        (deep / "host.xplane.pb").write_bytes(b"seen")
    assert target.read_bytes() == b"seen"
    assert not Path(path).exists()


@pytest.mark.parametrize("count", [0, 2])
def test_a_profiler_that_leaves_none_or_several_files_left_no_trace(tmp_path: Path, count: int) -> None:
    folder, target = Folder(), tmp_path / "epoch1.worker0.xplane.pb"
    with folder.kept_if_begun() as path:
        for number in range(count):
            (Path(path) / f"{number}.xplane.pb").touch()
    with pytest.raises(TraceError, match=f"the profiler left {count} files that end in"), folder.left_at(target):
        pass
    assert (target.exists(), Path(path).exists()) == (False, False)


def test_the_folder_of_a_profiler_that_does_not_begin_goes() -> None:
    places: list[Path] = []

    def begin() -> None:
        with Folder().kept_if_begun() as path:
            places.append(Path(path))
            raise RuntimeError("only one at a time")

    with pytest.raises(RuntimeError, match="only one"):
        begin()
    assert [path.exists() for path in places] == [False]
