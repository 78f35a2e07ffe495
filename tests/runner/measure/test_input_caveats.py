"""Warnings about the input of a measurement."""

from __future__ import annotations

from keras_matrix.records.instruments.input_use import InputFacts, InputUse
from keras_matrix.runner.measure.judge import input_caveats


def test_record_without_a_pipeline_or_without_problems_has_no_caveat() -> None:
    assert list(input_caveats(None)) == []
    assert list(input_caveats(InputUse(bad_samples=0, cold_files=3, resident_share=0.01))) == []


def test_replaced_samples_are_counted_and_the_first_are_named() -> None:
    use = InputUse(facts=InputFacts("grain", samples=3000), bad_samples=1200, bad_names=["a", "b", "c", "d"])
    assert list(input_caveats(use)) == [
        "bad_samples: 1,200 of 3,000 samples could not be decoded and were replaced by others (a, b, c, ...); repair "
        "or remove them"
    ]


def test_workers_that_did_not_come_to_rest_are_told_if_there_were_any() -> None:
    assert list(input_caveats(InputUse(restless_epochs=0))) == []
    (found,) = input_caveats(InputUse(restless_epochs=2))
    assert found.startswith("restless: after 2 epochs, discarded ones included, workers still prepared batches")


def test_files_that_stay_in_the_page_cache_make_a_cold_cell_doubtful() -> None:
    (found,) = input_caveats(InputUse(cold_files=3, resident_share=0.4))
    assert found.startswith("not_cold: 40.0 % of the files' bytes stayed in the page cache")
    assert list(input_caveats(InputUse(resident_share=0.4))) == []


def test_files_that_were_not_evicted_make_a_cold_cell_doubtful() -> None:
    (found,) = input_caveats(InputUse(facts=InputFacts("grain", files=4), cold_files=3, resident_share=0.0))
    assert found.startswith("not_cold: 1 of 4 files could not be evicted from the page cache")


def test_cold_is_not_claimed_where_the_system_does_not_say_what_is_cached() -> None:
    (found,) = input_caveats(InputUse(facts=InputFacts("grain", files=4), cold_files=4))
    assert found.startswith("maybe_not_cold: the system does not say")
