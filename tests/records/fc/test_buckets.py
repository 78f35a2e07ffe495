"""The rule by which DistributedDataParallel groups gradients, on examples by hand."""

from __future__ import annotations

from keras_matrix.records.fc import rules
from keras_matrix.records.fc.rules import MIB


def test_a_bucket_is_closed_as_soon_as_its_size_reaches_the_capacity() -> None:
    assert rules.buckets_by_capacity([4, 4, 4, 4, 4], [8]) == [[0, 1], [2, 3], [4]]
    assert rules.buckets_by_capacity([4, 4, 4, 4, 4], [9]) == [[0, 1, 2], [3, 4]]
    assert rules.buckets_by_capacity([4, 100, 4], [8]) == [[0, 1], [2]]


def test_each_bucket_has_its_own_capacity_and_the_last_applies_to_all_others() -> None:
    assert rules.buckets_by_capacity([4] * 6, [4, 8]) == [[0], [1, 2], [3, 4], [5]]
    assert rules.buckets_by_capacity([4] * 6, rules.capacities_bytes(0)) == [[0, 1, 2, 3, 4, 5]]
    assert rules.buckets_by_capacity([MIB, 24 * MIB, MIB, MIB], rules.capacities_bytes(0)) == [
        [0],
        [1, 2],
        [3],
    ]


def test_capacity_is_counted_in_mib() -> None:
    assert rules.capacities_bytes(0.5) == [MIB // 2]


def test_capacities_of_explicit_buckets_make_these_buckets() -> None:
    sizes = [3, 50, 50, 7, 50]
    for counts in ([1, 2, 2], [5], [1] * 5, [2, 3]):
        assert rules.buckets_by_capacity(sizes, rules.capacities_of(counts, sizes)) == rules.buckets_by_count(counts)


def test_groups_are_read_as_they_are_written() -> None:
    assert rules.counts("3,5,2") == (3, 5, 2)
    assert rules.blocks("0-3,4,6-7") == (range(4), range(4, 5), range(6, 8))
    assert rules.layers("0-2,5") == {0, 1, 2, 5}
    assert (rules.counts(""), rules.blocks(""), rules.layers("")) == ((), (), frozenset())


def test_layers_form_one_segment_or_to_be_recomputed_about_the_square_root_of_their_number() -> None:
    single = [range(at, at + 1) for at in range(7)]
    assert rules.segments(7, "", recompute=False) == [single]
    assert rules.segments(7, "", recompute=True) == [single[:3], single[3:6], single[6:]]
    blocks = [range(0, 3), range(3, 4), range(4, 6), range(6, 7)]
    assert rules.segments(7, "0-2,4-5", recompute=False) == [blocks]
    assert rules.segments(7, "0-2,4-5", recompute=True) == [blocks[:2], blocks[2:]]
