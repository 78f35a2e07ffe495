"""The figures of a language model's own loop: arithmetic, memory bandwidth, and the label overhead-bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.table import summarise, table
from keras_matrix.analysis.findings import FindingKind, run_findings
from keras_matrix.analysis.generation import (
    arithmetic_share,
    dequantisation_share,
    overhead_caveats,
    overhead_reasons,
    read_rate,
)
from keras_matrix.analysis.roofline import roofline
from keras_matrix.analysis.stats.cell_statistics import values
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report import results
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.schema import Record, Resolved
from keras_matrix.runner.cli.render.findings import table_lines
from tests.conftest import make_record, make_settings
from tests.synthetic_peaks import GIGA, make_peaks, stream

MEBI = 1 << 20
LARGE = Generation(
    prompt_length=16,
    max_length=48,
    weight_bytes=400 * MEBI,
    read_weight_bytes=300 * MEBI,
    cache_bytes=MEBI,
    last_level_cache_bytes=32 * MEBI,
    own_prefill_time_s=0.2,
    own_time_to_first_token_s=0.25,
    own_token_time_p50_s=0.05,
    own_token_time_p99_s=0.08,
    own_token_time_mean_s=0.06,
    own_tokens_agree=True,
    overhead_time_s=0.005,
)
GENERATES = {
    "settings": make_settings(backend="jax", workload="gpt2", phase="generate"),
    "resolved": Resolved(2, 4, "fork", "float32", cpus=2),
}


def records(one: Generation = LARGE, count: int = 3) -> list[Record]:
    """Return processes of a cell; only the first timed other models."""
    made = [make_record(0.5, repeat, **GENERATES) for repeat in range(count)]
    others = replace(one, overhead_time_s=None, unquantised_time_s=None)
    return [replace(record, generation=one if record.repeat == 0 else others) for record in made]


def test_arithmetic_is_what_a_step_costs_beyond_the_smallest_widths() -> None:
    assert arithmetic_share(records()) == pytest.approx(0.9)
    assert arithmetic_share(records(replace(LARGE, overhead_time_s=0.06))) == 0.0
    assert arithmetic_share(records(replace(LARGE, overhead_time_s=None))) is None


def test_dequantisation_is_what_a_step_costs_beyond_one_of_full_weights_in_the_same_process() -> None:
    """Mutation: `dequantisation_share` takes the median step of all processes."""
    slower = replace(LARGE, unquantised_time_s=0.04)
    assert dequantisation_share(records(slower)) == pytest.approx(0.2)
    first, *others = records(slower)
    busy = [replace(one, generation=replace(one.generation, own_token_time_p50_s=0.5)) for one in others]
    assert dequantisation_share([first, *busy]) == pytest.approx(0.2)
    assert dequantisation_share(records(replace(LARGE, unquantised_time_s=0.1))) == pytest.approx(-1.0)
    assert dequantisation_share(records()) is None


def test_weights_are_read_once_in_a_step() -> None:
    assert read_rate(LARGE) == pytest.approx(300 * MEBI / 0.06)
    assert read_rate(replace(LARGE, own_token_time_mean_s=None)) is None


def test_rate_of_reading_is_compared_with_the_triad_of_the_machine_in_the_finding_and_in_the_report() -> None:
    """Mutation: the share is over the best copy instead of the best triad."""
    rows = table(records())
    peaks = make_peaks(streams=[stream("jax", "triad", 20.0), stream("jax", "copy", 24.0)])
    [share] = roofline([("gpt2", rows[0].cells["jax"])], {}, peaks).shares
    assert share.read_byte_per_s == pytest.approx(300 * MEBI / 0.06)
    assert share.share_of_bandwidth == pytest.approx(300 * MEBI / 0.06 / (20 * GIGA))
    context = RunContext(shares={share.cell_id: share})
    [found] = [one for one in run_findings(result_table(rows, context)) if one.kind is FindingKind.PEAK]
    assert (found.metric, found.estimate) == ("generation.own_share_of_bandwidth", share.share_of_bandwidth)
    [block] = results.blocks(result_table(rows, context))
    [line] = [one for one in block.lines if one.name == "own loop: memory bandwidth"]
    assert (line.unit, [(one.text, one.aside) for one in line.values]) == ("%", [("26.2", "5.24 GB/s")])


def test_without_a_triad_the_share_of_bandwidth_is_not_known() -> None:
    [share] = roofline([("gpt2", summarise(records()))], {}, make_peaks(streams=[])).shares
    assert (share.share_of_bandwidth, share.read_byte_per_s) == (None, pytest.approx(300 * MEBI / 0.06))


def test_large_model_whose_steps_are_arithmetic_has_no_label() -> None:
    assert overhead_reasons(records()) == []
    assert overhead_caveats({"jax": records()}) == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight_bytes": 128 * MEBI}, "the weights (128 MiB) are not above 4 times the last-level caches (32.0 MiB)"),
        ({"overhead_time_s": 0.0101}, "arithmetic is 79.8 % of a decoding step, below 80.0 %"),
        ({"overhead_time_s": 0.025}, "arithmetic is 50.0 % of a decoding step, below 80.0 %"),
        ({"overhead_time_s": None}, "the share of arithmetic is not known"),
    ],
)
def test_label_names_the_condition_that_fails(change: dict[str, float], reason: str) -> None:
    """Mutation: `overhead_reasons` requires one of the two conditions only."""
    assert overhead_caveats({"jax": records(replace(LARGE, **change))}) == (f"overhead-bound: jax: {reason}",)


def test_label_is_a_caveat_of_the_row_that_the_terminal_prints() -> None:
    """Mutation: a row has the caveats of its devices alone."""
    rows = table(records(replace(LARGE, weight_bytes=128 * MEBI)))
    label = "overhead-bound: jax: the weights (128 MiB) are not above 4 times the last-level caches (32.0 MiB)"
    assert [row.caveats for row in rows] == [(label,)]
    assert f"  caveat: {label}" in [line.text for line in table_lines(result_table(rows))]
    assert [row.caveats for row in table(records())] == [()]


def test_unknown_caches_of_an_accelerator_leave_the_share_of_arithmetic_to_decide() -> None:
    assert overhead_reasons(records(replace(LARGE, weight_bytes=MEBI, last_level_cache_bytes=None))) == []


def test_training_and_prediction_have_the_label_since_their_share_of_arithmetic_is_not_measured() -> None:
    trained = Generation(None, 48, 400 * MEBI, None, None, 32 * MEBI)
    settings = make_settings(backend="jax", workload="gpt2", phase="fit")
    [row] = table([replace(one, settings=settings) for one in records(trained)])
    assert row.caveats == ("overhead-bound: jax: the share of arithmetic is not known",)
    small = replace(trained, weight_bytes=128 * MEBI)
    assert overhead_reasons(records(small)) == [
        "the weights (128 MiB) are not above 4 times the last-level caches (32.0 MiB)",
        "the share of arithmetic is not known",
    ]


def test_cell_of_another_workload_has_no_label() -> None:
    assert overhead_caveats({"jax": [make_record(0.5)]}) == ()


def test_figures_of_our_own_loop_are_statistics_of_the_cell() -> None:
    found = values(summarise(records()))
    assert {name.removeprefix("generation."): value for name, value in found.items() if "generation." in name} == {
        "own_time_to_first_token_s": 0.25,
        "own_token_time_p50_s": 0.05,
        "own_token_time_p99_s": 0.08,
        "own_arithmetic_share": pytest.approx(0.9),
        "weight_bytes": 400 * MEBI,
    }
