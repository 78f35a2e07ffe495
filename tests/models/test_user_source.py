"""A user's own source of batches as a pipeline: what it states, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_matrix.models.inputs.user_source import UNKNOWN_DEPTH, UserSource
from keras_matrix.models.workload import UnsupportedWorkload

pytestmark = pytest.mark.process  # imports Keras
NAME = "mine:build"


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of four samples, the last one of a pass with `last`."""

    def __init__(self, first: Any = None, last: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self._first, self._last = first, last

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        samples = self._last if index == 2 else 4
        return (np.zeros((samples, 5)), np.zeros(samples)) if self._first is None else self._first


def refused(kind: type[Exception], source: Any, options: Any = None) -> str:
    with pytest.raises(kind) as raised:
        UserSource(NAME, source, options)
    return str(raised.value).removeprefix(f"{NAME}: ")


def test_py_dataset_states_its_batches_and_workers() -> None:
    pipeline = UserSource(NAME, Batches(workers=2, max_queue_size=5))
    assert (pipeline.batch_size, pipeline.batches_per_pass, pipeline.depth) == (4, 3, 7)
    assert not pipeline.has_partial_batches
    facts = pipeline.facts
    assert (facts.pipeline, facts.workers, facts.worker_kind, facts.prefetch) == ("py_dataset", 2, "thread", 5)
    assert (facts.samples, facts.decoder, facts.files) == (12, None, None)


def test_partial_last_batch_is_no_batch_of_a_pass() -> None:
    pipeline = UserSource(NAME, Batches(last=1))
    assert (pipeline.batches_per_pass, pipeline.has_partial_batches, pipeline.depth) == (2, True, 0)
    assert [len(x) for x, _ in pipeline.in_memory(5)] == [4, 4]


def test_loader_and_data_set_of_grain_are_read_through_their_iterators() -> None:
    import grain
    import torch

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.zeros(10, 5), torch.zeros(10)), batch_size=4
    )
    pipeline = UserSource(NAME, loader)
    assert (pipeline.facts.pipeline, pipeline.batches_per_pass, pipeline.has_partial_batches) == (
        "data_loader",
        2,
        True,
    )
    assert [type(part) for part in pipeline.in_memory(1)[0]] == [np.ndarray, np.ndarray]
    data_set = grain.MapDataset.range(3).map(lambda index: (np.full((4, 5), index), np.zeros(4)))
    pipeline = UserSource(NAME, data_set.to_iter_dataset())
    assert (pipeline.facts.pipeline, pipeline.batch_size, pipeline.depth) == ("grain", 4, UNKNOWN_DEPTH)
    assert [int(x[0, 0]) for x, _ in pipeline.in_memory(9)] == [0, 1, 2]


def test_files_and_depth_that_the_workload_names_are_used(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("four")
    pipeline = UserSource(NAME, Batches(), {"files": [tmp_path / "a"], "depth": 9})
    assert (pipeline.files(), pipeline.depth) == ([tmp_path / "a"], 9)
    assert (pipeline.facts.stored_bytes, pipeline.facts.files) == (4, 1)


def test_stages_of_a_users_source_are_unsupported() -> None:
    with pytest.raises(UnsupportedWorkload, match="cannot be timed"):
        UserSource(NAME, Batches()).source(timed=True)


def test_what_fit_cannot_read_twice_or_at_all_is_refused_with_advice() -> None:
    assert refused(TypeError, iter([])).startswith("a generator can be read only once; return a keras.utils.PyDataset")
    assert refused(TypeError, (one for one in ())).startswith("a generator can be read only once")
    assert refused(TypeError, 3).startswith("fit cannot read batches from this; return a keras.utils.PyDataset")


@pytest.mark.parametrize("batch", [np.zeros(4), (np.zeros(4),), (np.zeros(4), None), {"a": np.zeros(4), "z": 2.0}])
def test_batch_may_have_what_fit_takes(batch: Any) -> None:
    assert UserSource(NAME, Batches(batch)).batch_size == 4


def test_batch_of_more_than_three_parts_is_refused() -> None:
    message = refused(TypeError, Batches((np.zeros(4),) * 4))
    assert message == "a batch must be x, (x, y) or (x, y, sample_weight). Received: tuple of 4"


@pytest.mark.parametrize("batch", [(np.zeros((4, 5)), np.zeros(3)), (np.zeros((0, 5)), np.zeros(0))])
def test_arrays_of_a_batch_must_have_the_same_number_of_samples(batch: Any) -> None:
    assert "the arrays of a batch must have one leading dimension" in refused(ValueError, Batches(batch))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"file": []}, "the options of a source are files, depth. Received: file"),
        ({"files": ["/no/such"]}, "files: must exist. Received: /no/such"),
        ({"depth": -1}, "depth: a whole number of batches, 0 or more. Received: -1"),
    ],
)
def test_options_of_a_source_are_checked(options: dict[str, Any], expected: str) -> None:
    assert refused(ValueError, Batches(), options) == expected
