"""The verdicts of the table follow from the records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis.comparison.primary_metric import Figure, epoch_quantiles
from keras_matrix.analysis.comparison.ratios import partial_verdict, ratio_of, ratios_text
from keras_matrix.analysis.comparison.table import Row, _behind, incomparable, summarise, table
from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.analysis.findings import run_findings
from keras_matrix.analysis.regression.gate import GATE_LOOKS
from keras_matrix.analysis.stats.blocks import LEVEL, minimum_detectable_effect, spread
from keras_matrix.analysis.stats.sequential import FIXED, LOOKS, Looks
from keras_matrix.analysis.stats.suite import suite
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.findings import FindingKind
from keras_matrix.records.schema import DeviceProof, Memory, Record, Resolved, Status, Times
from keras_matrix.records.settings import IMPLEMENTATIONS
from keras_matrix.records.task import Goal, Metric, TaskRun
from tests.conftest import MACHINE, make_record, make_settings
from tests.synthetic_devices import device_records

CLOSE = {"tensorflow": 0.0100, "jax": 0.0101, "torch": 0.0102}
APART = {"tensorflow": 0.010, "jax": 0.020, "torch": 0.040}


def records_of(
    step_times_s: dict[str, float],
    *,
    repeats: int = 5,
    noise: float = 0.02,
    workload: str = "mnist_mlp",
    league: str = "as_shipped",
    **changes: Any,
) -> list[Record]:
    return [
        make_record(
            base * (1 + noise * ((i + r) % 3 - 1)),
            repeat=r,
            settings=make_settings(backend=backend, workload=workload, league=league),
            **changes,
        )
        for i, (backend, base) in enumerate(step_times_s.items())
        for r in range(repeats)
    ]


def only_row(records: list[Record]) -> Row:
    rows = table(records)
    assert len(rows) == 1
    return rows[0]


def test_clear_winner_is_named_with_its_ratios() -> None:
    row = only_row(records_of(APART))
    assert row.fastest == "tensorflow"
    assert row.verdict == "tensorflow is fastest: jax takes 2.02x [1.95 2.08] as long, torch 4.02x [3.86 4.18]"


def test_close_backends_are_not_separable() -> None:
    row = only_row(records_of(CLOSE))
    assert row.fastest is None
    assert row.verdict == (
        "not separable: jax takes 1.02x [0.98 1.05] as long as tensorflow, torch 1.02x [0.98 1.07]; "
        "a difference of 5.7 % would have shown"
    )


def test_close_second_prevents_naming_the_fastest_but_not_the_slower_one() -> None:
    row = only_row(records_of({"tensorflow": 0.0100, "jax": 0.0101, "torch": 0.040}))
    assert (row.fastest, row.slower) == (None, ("torch",))
    assert row.verdict == (
        "tensorflow or jax is fastest (not separable: jax takes 1.02x [0.98 1.05] as long as tensorflow; a difference "
        "of 4.6 % would have shown); torch is slower: 4.02x [3.86 4.18] as long as tensorflow"
    )
    ratios = {one.backend: one.verdict for one in run_findings(result_table([row])) if one.kind is FindingKind.RATIO}
    assert ratios == {"jax": "open", "torch": "slower"}


def test_several_slower_backends_are_named_together() -> None:
    ratios = {
        "jax": [0.0, 0.1, -0.1, 0.05, -0.05],
        "torch": [0.5, 0.51, 0.49, 0.5, 0.5],
        "numpy": [0.7, 0.7, 0.71, 0.7, 0.7],
    }
    found = [ratio_of(name, {"host": logs}, FIXED) for name, logs in ratios.items()]
    assert partial_verdict("tensorflow", found[:1], found[1:]) == (
        "tensorflow or jax is fastest (not separable: jax takes 1.00x [0.91 1.10] as long as tensorflow; a difference "
        "of 14.2 % would have shown); torch and numpy are slower: 1.65x [1.63 1.66] and 2.02x [2.01 2.03] as long as "
        "tensorflow"
    )


def test_ratio_of_a_rate_costs_as_much_and_takes_no_time() -> None:
    rate = Figure("images_per_s", "images/s", Goal.HIGHER)
    ratio = ratio_of("torch", {"host": [0.5, 0.51, 0.49, 0.5, 0.5]}, FIXED)
    assert ratios_text([ratio], rate, "jax") == "torch costs 1.65x [1.63 1.66] as much as jax"
    assert (
        ratios_text([ratio], Figure("wall", "ms", Goal.LOWER), "jax") == "torch takes 1.65x [1.63 1.66] as long as jax"
    )


def test_equal_backends_are_called_slower_in_at_most_five_of_a_hundred_tables() -> None:
    """Without the factor for the choice of the lowest after measuring, it is 8 % of the tables."""
    random, wrong, tables = np.random.default_rng(0), 0, 1500
    for _ in range(tables):
        logs = np.log(0.01) + 0.05 * random.standard_normal((4, 12))
        lowest, *others = sorted(range(4), key=lambda one: float(logs[one].mean()))
        ratios = tuple(ratio_of(str(one), {"host": list(logs[one] - logs[lowest])}, FIXED) for one in others)
        p_values = _behind([Row("", {}, None, "", ratios, lowest=str(lowest))])
        wrong += any(value <= LEVEL for value in p_values.values())
    assert wrong / tables <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)


@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_fewer_than_five_repeats_never_name_a_winner(repeats: int) -> None:
    row = only_row(records_of(APART, repeats=repeats))
    assert (row.fastest, row.verdict) == (None, "not separable: fewer than 5 repeats give no interval")


def test_cells_without_a_repeat_in_common_are_not_separable() -> None:
    late = [replace(record, repeat=record.repeat + 5) for record in records_of({"jax": 0.02})]
    row = only_row(records_of({"torch": 0.04}) + late)
    assert (row.fastest, row.verdict) == (None, "not separable: some cells have no repeat in common")


def test_single_backend_has_nothing_to_compare() -> None:
    assert only_row(records_of({"jax": 0.01})).verdict == "nothing to compare"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"resolved": Resolved(50, 32, "fork", "float32", parameters=999)}, "parameters differ: jax 999, torch 1,000"),
        ({"resolved": Resolved(50, 32, "fork", "mixed_bfloat16", parameters=1000)}, "precisions differ"),
        ({"resolved": Resolved(60, 32, "fork", "float32", parameters=1000)}, "steps per epoch differ"),
        ({"device": DeviceProof("gpu", "cuda:0", 1)}, "devices differ: jax gpu, torch cpu"),
    ],
)
def test_cells_of_different_work_are_not_compared(change: dict[str, Any], reason: str) -> None:
    row = only_row(records_of({"torch": 0.04}) + records_of({"jax": 0.01}, **change))
    assert row.fastest is None
    assert row.verdict.startswith(f"not comparable: {reason}")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("cpus", 1, "CPUs"), ("data_is_real", True, "kinds of data")],
)
def test_different_effective_settings_are_not_comparable(field: str, value: Any, reason: str) -> None:
    resolved = replace(Resolved(50, 32, "fork", "float32", parameters=1000), **{field: value})
    row = only_row(records_of({"torch": 0.04}) + records_of({"jax": 0.01}, resolved=resolved))
    assert row.verdict.startswith(f"not comparable: {reason} differ")


def test_median_and_p95_of_the_processes_are_summarised() -> None:
    figures = [0.010, 0.011, 0.012, 0.013, 0.024]
    cell = summarise([make_record(figure, repeat) for repeat, figure in enumerate(figures)])
    assert (cell.step_time_median, cell.step_time_p95) == pytest.approx((0.012, np.quantile(figures, 0.95)))
    alone = summarise([make_record(0.01)])
    assert (alone.step_time_median, alone.step_time_p95) == (None, None)


def test_median_and_p95_of_a_process_are_those_of_its_epochs_a_step() -> None:
    times = Times(epoch_time_median_s=1.0, epoch_time_p95_s=3.0, step_time_s=0.03)
    record = replace(make_record(), times=times)
    assert epoch_quantiles(record) == pytest.approx((0.02, 0.06))
    assert epoch_quantiles(replace(record, resolved=None)) == (None, None)
    assert epoch_quantiles(make_record(None, status=Status.CRASH)) == (None, None)


def test_title_names_settings_that_vary_within_the_workload() -> None:
    works = [
        make_settings(workload="gru", batch_size=8, params={"units": 4}),
        make_settings(workload="gru", batch_size=8),
        make_settings(workload="lstm", batch_size=16),
    ]
    assert titles(works, {}) == ["gru units=4", "gru", "lstm"]
    assert titles(works, {"lstm": {"batch_size": 32}, "gru": {"batch_size": 8}}) == [
        "gru units=4",
        "gru",
        "lstm batch_size=16",
    ]


def test_title_distinguishes_a_parameter_from_the_setting_of_its_name() -> None:
    parameters = [make_settings(workload="m:build", params={"feed": value}) for value in ("a", "b")]
    assert titles(parameters, {}) == ["m:build feed=a", "m:build feed=b"]
    both = [
        make_settings(workload="m:build", params={"feed": "host_fed"}),
        make_settings(workload="m:build", feed="host_fed"),
        make_settings(workload="other"),
    ]
    assert titles(both, {}) == [
        "m:build params.feed=host_fed feed=device_resident",
        "m:build feed=host_fed",
        "other",
    ]
    unusual = [make_settings(workload="m:build", params={"feed": 1})]
    assert titles(unusual, {"m:build": {"params.feed": 2}}) == ["m:build feed=1"]
    assert titles(unusual, {"m:build": {"params.feed": 2, "feed": "pipeline"}}) == [
        "m:build params.feed=1 feed=device_resident"
    ]


def test_titles_differ_for_equal_looking_values() -> None:
    values = ["1", 1, 1.0, True, "True", "", "a b", "a  b", "a, b=1"]
    found = titles([make_settings(workload="m:build", params={"x": value}) for value in values], {})
    assert found == [
        f"m:build x={text}" for text in ('"1"', "1", "1.0", "True", '"True"', '""', '"a b"', '"a \\u0020b"', '"a, b=1"')
    ]


def test_different_hosts_are_not_comparable() -> None:
    elsewhere = records_of({"jax": 0.01}, machine=replace(MACHINE, host_id="f" * 16))
    assert only_row(records_of({"torch": 0.04}) + elsewhere).verdict.startswith("not comparable: hosts differ")


def pair(workload: str, gap: float, scatter: float = 0.02) -> list[Record]:
    """jax and torch on one workload: torch slower by `gap` on the logarithms, the pairs scattering about it."""
    steps = [scatter * deviation for deviation in (-1.3, -0.4, 0.0, 0.4, 1.3)]
    return [
        make_record(time_s, repeat=r, settings=make_settings(workload=workload, backend=backend))
        for r, step in enumerate(steps)
        for backend, time_s in (("jax", 0.01), ("torch", 0.01 * math.exp(gap + step)))
    ]


def test_fastest_must_be_a_discovery_among_the_rows() -> None:
    """A row that separates alone need not be a discovery among twenty rows without differences."""
    alone = only_row(pair("gru", 0.027))
    assert alone.fastest == "jax"
    others = [record for i in range(20) for record in pair(f"w{i:02}", 0.0)]
    row = table(pair("gru", 0.027) + others)[0]
    assert (row.title, row.fastest) == ("gru", None)
    assert row.verdict == (
        "not separable: torch takes 1.03x [1.00 1.05] as long as jax: not a discovery among 21 rows (p 0.73)"
    )


@pytest.mark.parametrize(("looks", "factor"), [(FIXED, 1), (LOOKS, 2), (GATE_LOOKS, 2)])
def test_fastest_needs_half_the_p_value_if_repeats_were_added(looks: Looks, factor: int) -> None:
    (plain,) = only_row(pair("gru", 0.027)).ratios
    (row,) = table(pair("gru", 0.027), looks=looks)
    assert plain.p_value is not None
    assert row.ratios[0].p_value == pytest.approx(factor * plain.p_value)


def test_p_value_of_a_row_is_that_of_its_nearest_rival() -> None:
    """Among two rows a p-value of 0.035 becomes 0.07; another backend far behind does not lower it."""
    far = [
        replace(r, settings=s, cell_id=make_record(settings=s).cell_id, times=Times(step_time_s=1.0 + 0.001 * r.repeat))
        for r in pair("gru", 0.0)[::2]
        for s in [replace(r.settings, backend="tensorflow")]
    ]
    row = table([*pair("gru", 0.027), *far, *pair("lstm", 0.0)])[0]
    assert (row.title, row.fastest) == ("gru", None)
    assert row.verdict == (
        "jax or torch is fastest (not separable: torch takes 1.03x [1.00 1.05] as long as jax: not a discovery among 2 "
        "rows (p 0.07)); tensorflow is slower: 100.20x [100.00 100.40] as long as jax"
    )


def test_no_fastest_if_a_backend_has_no_repeat_in_common() -> None:
    late = [replace(record, repeat=record.repeat + 5) for record in records_of({"torch": 0.04})]
    row = only_row(records_of({"tensorflow": 0.01, "jax": 0.02}) + late)
    assert (row.fastest, row.verdict) == (None, "not separable: some cells have no repeat in common")


def test_many_similar_rows_are_discoveries_together() -> None:
    rows = table([record for i in range(20) for record in pair(f"w{i:02}", 0.027)])
    assert {row.fastest for row in rows} == {"jax"}


def test_ratio_has_its_smallest_detectable_difference() -> None:
    close, wide = (only_row(pair("gru", 0.0, scatter)).ratios[0] for scatter in (0.02, 0.04))
    assert close.smallest_difference is not None
    assert wide.smallest_difference is not None
    assert math.log1p(wide.smallest_difference) == pytest.approx(2 * math.log1p(close.smallest_difference))
    assert only_row(records_of(APART, repeats=4)).ratios[0].smallest_difference is None


def test_row_reports_its_largest_detectable_difference() -> None:
    steps = (-1.3, -0.4, 0.0, 0.4, 1.3)
    scatters = {"tensorflow": 0.0, "jax": 0.05, "torch": 0.2}
    made = [
        make_record(0.01 * math.exp(scatter * (step + 0.1)), repeat=r, settings=make_settings(backend=backend))
        for backend, scatter in scatters.items()
        for r, step in enumerate(steps)
    ]
    row = only_row(made)
    known = sorted(ratio.smallest_difference or 0.0 for ratio in row.ratios)
    assert known[0] < 0.5 * known[1]
    assert row.verdict.endswith(f"; a difference of {known[1] * 100:.1f} % would have shown")


def test_smallest_difference_of_a_cell_is_that_of_two_such_cells() -> None:
    """Unpaired, their ratio scatters by the square root of 2 more than either."""
    times_s = [0.010, 0.011, 0.0105, 0.0102, 0.0097]
    scatter = spread(times_s)
    assert scatter is not None
    found = summarise([make_record(time_s, repeat) for repeat, time_s in enumerate(times_s)]).smallest_difference
    assert found == pytest.approx(minimum_detectable_effect(2**0.5 * scatter, 5))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"machine": replace(MACHINE, host_id="another")}, "machines differ (2 hosts) within tensorflow"),
        ({"versions": {"keras": "3.13.2"}}, "keras versions differ (3.13.2, 3.15.1) within tensorflow"),
        ({"versions": {"jax": "0.9.0"}}, "jax versions differ (0.10.2, 0.9.0) within jax"),
    ],
)
def test_different_machines_or_versions_under_one_label_are_not_comparable(
    change: dict[str, Any], expected: str
) -> None:
    """The same in both cells, so that the cells do not differ from each other."""
    versions = {"keras": "3.15.1", "jax": "0.10.2"}
    records = [replace(r, versions=versions) for r in records_of(APART)]
    odd = [replace(r, **{**change, "versions": versions | change.get("versions", {})}) for r in records if r.repeat % 2]
    assert only_row([r for r in records if not r.repeat % 2] + odd).verdict == f"not comparable: {expected}"


def test_suite_has_a_ratio_of_each_backend_to_the_leading_one() -> None:
    records = [
        record
        for i, factor in enumerate((1.0, 2.0, 3.0))
        for record in records_of(
            {"tensorflow": 0.01 * factor, "jax": 0.02 * factor, "torch": 0.04 * factor}, workload=f"w{i}"
        )
    ]
    (found,) = suite(table(records))
    assert (found.league, found.against) == ("as_shipped", "tensorflow")
    centres = {backend: ratio.estimate.centre for backend, ratio in found.ratios.items()}
    assert centres == pytest.approx({"jax": 2.0, "torch": 4.0}, rel=0.05)
    assert found.ratios["jax"].workloads == ("w0", "w1", "w2")


def test_suite_has_the_confidence_of_its_rows_at_their_look() -> None:
    records = [r for name in ("w0", "w1") for r in records_of({"jax": 0.01, "torch": 0.02}, repeats=8, workload=name)]
    plain, looked = table(records), table(records, looks=LOOKS)
    for rows in (plain, looked):
        (found,) = suite(rows)
        assert found.ratios["torch"].estimate.half_width == pytest.approx(rows[0].ratios[0].estimate.half_width)
    assert (suite(looked)[0].ratios["torch"].estimate.high or 0) > (suite(plain)[0].ratios["torch"].estimate.high or 0)


def test_suite_never_mixes_leagues() -> None:
    matched = records_of({"jax": 0.01, "torch": 0.02}, league="matched")
    found = suite(table(records_of({"jax": 0.02, "torch": 0.01}) + matched))
    assert [(one.league, one.against) for one in found] == [("as_shipped", "torch"), ("matched", "jax")]


def test_metric_of_an_external_command_is_excluded_from_the_suite() -> None:
    def speed(value: float) -> TaskRun:
        return TaskRun("train", ["./train"], "speed", [Metric("speed", value, "samples/s", goal=Goal.HIGHER)])

    records = [
        make_record(None, repeat, settings=make_settings(workload="task train", backend=name), task=speed(value))
        for name, value in (("batch_size=8", 100.0), ("batch_size=16", 300.0))
        for repeat in range(5)
    ]
    rows = table(records)
    assert [row.fastest for row in rows] == ["batch_size=16"]
    assert suite(rows) == []


def test_rows_on_several_devices_are_excluded_from_the_suite_and_named() -> None:
    alone = records_of({"jax": 0.01, "torch": 0.02})
    several = device_records(2, [0.03] * 5, "jax") + device_records(2, [0.01] * 5, "torch")
    rows = table(alone + several)
    ([found], [of_one]) = suite(rows), suite(table(alone))
    assert (found.against, found.ratios["torch"].estimate) == ("jax", of_one.ratios["torch"].estimate)
    assert (found.left_out, of_one.left_out) == ("mnist_mlp devices=2 (several devices)", "")
    assert result_table(rows).summary[0].endswith("as long as jax; left out: mnist_mlp devices=2 (several devices)")
    suites = [one for one in run_findings(result_table(rows)) if one.kind is FindingKind.SUITE]
    assert [one.facts for one in suites] == [{"left out": found.left_out}]
    assert suite(table(several)) == []


def test_rows_of_several_implementations_are_ordered_from_keras_to_native_code() -> None:
    records = [
        make_record(0.01, at, settings=make_settings(batch_size=size, implementation=one))
        for size in (32, 64)
        for one in IMPLEMENTATIONS
        for at in range(5)
    ]
    assert [row.title for row in table(records)] == [
        f"mnist_mlp batch_size={size} implementation={one}" for size in (32, 64) for one in IMPLEMENTATIONS
    ]


def test_rows_of_another_implementation_are_excluded_from_the_suite_and_named() -> None:
    by_fit, native = (
        [
            make_record(step_s, at, settings=make_settings(backend=name, implementation=one))
            for name, step_s in (("jax", 0.01 * factor), ("torch", 0.02))
            for at in range(5)
        ]
        for one, factor in (("keras", 1), ("native", 9))
    )
    ([found], [of_fit]) = suite(table(by_fit + native)), suite(table(by_fit))
    assert (found.against, found.ratios["torch"].estimate) == ("jax", of_fit.ratios["torch"].estimate)
    assert found.left_out == "mnist_mlp implementation=native (another implementation than Keras)"
    assert suite(table(native)) == []


def test_rows_that_are_not_comparable_are_excluded_from_the_suite() -> None:
    other = Resolved(50, 32, "fork", "float32", parameters=999)
    assert suite(table(records_of({"torch": 0.04}) + records_of({"jax": 0.01}, resolved=other))) == []
    assert suite([]) == []


def test_summary_takes_the_geometric_mean_of_speeds_and_the_largest_memory() -> None:
    made = [
        make_record(
            None,
            repeat=r,
            times=Times(step_time_s=0.01 * (r + 1), samples_per_s=float(speed)),
            memory=Memory(peak_host_memory_bytes=memory),
        )
        for r, (speed, memory) in enumerate([(10, 3), (40, 9), (20, 6)])
    ]
    assert summarise(made).samples_per_s == pytest.approx(20.0)
    assert summarise(made).peak_host_memory_bytes == 9


def test_each_league_has_its_own_row() -> None:
    matched = [replace(r, settings=replace(r.settings, league="matched")) for r in records_of({"jax": 0.01})]
    matched = [make_record(0.01, repeat=r.repeat, settings=r.settings) for r in matched]
    assert [row.title for row in table(records_of({"torch": 0.04}) + matched)] == [
        "mnist_mlp league=as_shipped",
        "mnist_mlp league=matched",
    ]


def test_title_names_what_is_unusual_and_what_varies() -> None:
    records = [
        make_record(0.01, settings=make_settings(workload="vit", params={"image_size": 64, "depth": 12}, batch_size=8)),
        make_record(
            0.01, settings=make_settings(workload="vit", params={"image_size": 64, "depth": 12}, batch_size=16)
        ),
        make_record(0.01, settings=make_settings(workload="gru")),
    ]
    usual = {"vit": {"image_size": 224, "depth": 12, "batch_size": 8}, "gru": {"batch_size": 32}}
    assert [row.title for row in table(records, usual)] == [
        "gru",
        "vit image_size=64 batch_size=16",
        "vit image_size=64 batch_size=8",
    ]


def test_failures_are_listed_and_not_counted() -> None:
    bad = make_record(None, repeat=2, status=Status.CRASH, reason="ended by signal 11")
    cell = summarise([make_record(0.01), make_record(0.02, repeat=1), bad])
    assert cell.failures == ((Status.CRASH, "ended by signal 11"),)
    assert len(cell.measured) == 2


def test_latest_attempt_of_a_repeat_counts() -> None:
    spoiled = make_record(None, status=Status.INFRA)
    assert summarise([replace(make_record(0.01), attempt=1), spoiled]).failures == ()


def test_unstable_cells_are_measured_too() -> None:
    assert summarise([make_record(0.01, status=Status.UNSTABLE)]).step_time is not None


def test_repeated_block_counts_once_and_the_ratio_over_all_blocks_is_added() -> None:
    calm = records_of(APART)
    disturbed = [replace(record, times=replace(record.times, step_time_s=0.5)) for record in calm if record.repeat == 2]
    again = [replace(record, attempt=1) for record in calm if record.repeat == 2]
    row = only_row([*(record for record in calm if record.repeat != 2), *disturbed, *again])

    assert only_row(calm).fastest == row.fastest == "tensorflow"
    assert [ratio.estimate for ratio in only_row(calm).ratios] == [ratio.estimate for ratio in row.ratios]
    assert all(ratio.all_data is not None and ratio.all_data.count == 6 for ratio in row.ratios)
    assert "with disturbed blocks" in row.verdict


def test_float64_cells_of_different_backends_are_not_compared() -> None:
    records = [replace(record, settings=replace(record.settings, precision="float64")) for record in records_of(APART)]
    row = only_row(records)

    assert row.fastest is None
    assert row.verdict.startswith("not comparable: in float64")


def test_float64_of_one_backend_under_two_labels_is_compared() -> None:
    cell = summarise([make_record(0.01, settings=make_settings(precision="float64"))])
    assert incomparable({"base": cell, "new": cell}) is None


@pytest.mark.parametrize(
    ("field", "of_torch", "others", "expected"),
    [
        ("jit_compile", False, True, "compile modes"),
        ("image_data_format", "channels_first", "channels_last", "image data formats"),
        ("intra_op_threads", 1, 2, "threads of an operation"),
    ],
)
def test_backend_defaults_may_differ_as_shipped_and_not_matched(
    field: str, of_torch: object, others: object, expected: str
) -> None:
    def row(league: str) -> Row:
        changed = [
            replace(r, resolved=replace(r.resolved, **{field: of_torch if r.settings.backend == "torch" else others}))
            for r in records_of(APART, league=league)
            if r.resolved
        ]
        return only_row(changed)

    assert only_row(records_of(APART, league="matched")).fastest == "tensorflow"
    assert row("as_shipped").fastest == "tensorflow"
    assert row("matched").verdict.startswith(f"not comparable: {expected} differ")


def test_backend_without_known_threads_is_comparable_in_matched() -> None:
    threads = {"tensorflow": None, "jax": None, "torch": 2}
    records = records_of(APART, league="matched")
    found = [
        replace(r, resolved=replace(r.resolved, intra_op_threads=threads[r.settings.backend]))
        for r in records
        if r.resolved
    ]
    assert only_row(found).fastest == "tensorflow"


def test_verdict_not_separable_includes_the_ratio_with_disturbed_blocks() -> None:
    calm = pair("gru", 0.0)
    again = [replace(record, attempt=1) for record in calm if record.repeat == 2]
    row = only_row([*calm, *again])
    assert row.fastest is None
    assert "] as long as torch (with disturbed blocks [0.98 1.02])" in row.verdict
