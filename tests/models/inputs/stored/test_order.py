"""The order in which batches read samples."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest

from keras_matrix.models.inputs.stored.sample import SHUFFLES, Order


def one_pass(order: Order, epoch: int = 0) -> np.ndarray:
    first = epoch * order.batches_per_pass
    return np.concatenate([order.indices(first + batch) for batch in range(order.batches_per_pass)])


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(("count", "batch_size"), [(100, 32), (96, 32), (7, 32), (1, 4), (33, 1), (1000, 5)])
def test_every_sample_occurs_once_in_the_first_positions_of_a_pass(shuffle: str, count: int, batch_size: int) -> None:
    order = Order(count, batch_size, shuffle, seed=3)
    for epoch in (0, 1, 5):
        assert sorted(one_pass(order, epoch)[:count].tolist()) == list(range(count))


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_last_batch_of_a_pass_is_filled_from_its_beginning(shuffle: str) -> None:
    order = Order(10, 4, shuffle, seed=1)
    taken = one_pass(order)
    assert order.batches_per_pass == 3
    assert taken[10:].tolist() == taken[:2].tolist()


def test_batches_are_equal_in_every_process_and_at_every_call() -> None:
    order = Order(1000, 32, "window", seed=7)
    copy = pickle.loads(pickle.dumps(order))
    for batch in (0, 31, 32, 500, 3):
        assert order.indices(batch).tolist() == copy.indices(batch).tolist()


@pytest.mark.parametrize("shuffle", ["window", "global"])
def test_epochs_and_seeds_have_other_orders(shuffle: str) -> None:
    order = Order(1000, 32, shuffle, seed=0)
    assert one_pass(order).tolist() != one_pass(order, epoch=1).tolist()
    assert one_pass(order).tolist() != one_pass(Order(1000, 32, shuffle, seed=1)).tolist()


def test_no_shuffle_keeps_the_stored_order_in_every_pass() -> None:
    order = Order(6, 4, "none", seed=9)
    assert [order.indices(batch).tolist() for batch in range(3)] == [[0, 1, 2, 3], [4, 5, 0, 1], [0, 1, 2, 3]]


def test_window_reads_a_batch_in_few_runs_from_distant_places() -> None:
    order = Order(100_000, 32, "window", seed=0)
    for batch in range(200):
        taken = order.indices(batch).tolist()
        assert 1 + sum(after != before + 1 for before, after in pairwise(taken)) <= 6
        assert max(taken) - min(taken) > 1_000


def test_window_has_other_neighbours_in_each_epoch() -> None:
    order = Order(1000, 32, "window", seed=0)
    ends = [
        {before for before, after in pairwise(one_pass(order, epoch).tolist()) if after != before + 1}
        for epoch in range(8)
    ]
    assert len(set.union(*ends)) > 2 * len(ends[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, "none", 0), "count=0"),
        ((5, 0, "none", 0), "batch_size=0"),
        ((5, 1, "some", 0), "shuffle: must be one of none, window, global, got 'some'"),
        ((5, 1, "none", -1), "seed: must be at least 0, got -1"),
    ],
)
def test_invalid_values_are_refused(arguments: tuple[int, int, str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Order(*arguments)


def test_shared_permutation_cannot_be_changed() -> None:
    from keras_matrix.models.inputs.stored.sample import permuted_runs

    with pytest.raises(ValueError, match="read-only"):
        permuted_runs(10, 2, 0, 0)[0] = 5
