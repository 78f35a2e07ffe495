"""Cells that were measured at several machines: equal ones are a level of the statistics, others are not compared."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis import findings
from keras_matrix.analysis.comparison.machines import difference, noun
from keras_matrix.analysis.comparison.ratios import text_of
from keras_matrix.analysis.comparison.table import Row, summarise, table
from keras_matrix.analysis.stats.sequential import LOOKS, levels
from keras_matrix.analysis.stats.suite import suite
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.charts.picture import Word
from keras_matrix.dashboards.report import results
from keras_matrix.records.findings import FindingKind
from keras_matrix.records.instruments.gpu_place import GpuPlace
from keras_matrix.records.schema import Machine, Record
from keras_matrix.runner.cli.render.findings import table_lines
from keras_matrix.runner.service.cell_rows import comparisons_of
from tests.conftest import MACHINE, make_record, make_settings
from tests.dashboards.charts.drawn import drawn

EQUAL = replace(MACHINE, memory_bytes=64 << 30, kernel="6.1")
NOISE = (0.0, 0.01, -0.01, 0.005, -0.005, 0.02, -0.02, 0.0)


def at(host: str, **changes: Any) -> Machine:
    return replace(EQUAL, host_id=host * 16, **changes)


def records_at(
    machines: Sequence[Machine], blocks: int = 9, speeds: Sequence[float] = (1.0, 1.3, 1.7), **ratios: Any
) -> list[Record]:
    """Return records of JAX and PyTorch, the blocks over the machines one after the other.

    `speeds` multiply the times of a machine's cells; `ratio` is torch / jax, at each machine if it is several.
    """
    ratio = ratios.get("ratio", 1.5)
    found = []
    for block in range(blocks):
        n = block % len(machines)
        own = ratio if isinstance(ratio, float) else ratio[n]
        for name, time_s in (("jax", 0.01), ("torch", 0.01 * own * math.exp(NOISE[block % len(NOISE)]))):
            settings = make_settings(backend=name)
            found.append(make_record(time_s * speeds[n], block, settings=settings, machine=machines[n]))
    return found


def only(records: list[Record], **arguments: Any) -> Row:
    [row] = table(records, **arguments)
    return row


def test_a_ratio_about_which_machines_disagree_says_so_instead_of_asking_for_repeats() -> None:
    """Mutation: `text_of` reports too few repeats of every ratio without an interval."""
    ratio = only(records_at([A, B, C], blocks=24, ratio=[1.1, 1.5, 2.0])).ratios[0]
    text = text_of(ratio, "not separable from 1")
    assert text.amount == f"{ratio.estimate.centre:.2f}x"
    assert text.remark.startswith("the machines disagree: 1.10x at ")
    assert str(text) == f"{text.amount} ({text.remark})"


A, B, C = at("a"), at("b"), at("c", memory_bytes=(64 << 30) - (1 << 30))


def test_equal_machines_are_compared_and_the_verdict_names_their_number() -> None:
    row = only(records_at([A, B, C]))
    assert (row.fastest, row.machines) == ("jax", ("a" * 16, "b" * 16, "c" * 16))
    assert re.fullmatch(
        r"jax is fastest: torch takes 1\.50x \[1\.\d\d 1\.\d\d\] as long \(over 3 machines\)", row.verdict
    )
    [ratio] = row.ratios
    logs = {n: [math.log(1.5) + NOISE[b % 8] for b in range(9) if b % 3 == n] for n in range(3)}
    expected = levels({str(n): own for n, own in logs.items()})
    assert expected is not None
    assert ratio.estimate.bounds == pytest.approx(expected.estimate().bounds)
    assert (ratio.scatter, ratio.p_value) == (pytest.approx(expected.scatter), pytest.approx(expected.p_value()))
    assert [one.machine[0] for one in ratio.by_machine] == ["a", "b", "c"]
    assert ratio.disagreement == pytest.approx(expected.disagreement())


def test_step_time_is_the_mean_of_the_machines_and_their_speed_is_not_its_scatter() -> None:
    records = [record for record in records_at([A, B, C], blocks=12) if record.settings.backend == "torch"]
    cell = summarise([*records, replace(records[0], repeat=20)])  # one more at the first machine
    assert cell.step_time is not None
    assert cell.step_time.centre == pytest.approx(0.015 * (1.3 * 1.7) ** (1 / 3), rel=0.01)
    assert cell.spread == pytest.approx(0.012, abs=0.003)
    assert (cell.step_time.half_width or 1.0) < 0.01
    assert cell.caveats == ()


def test_close_backends_are_not_separable_over_several_machines() -> None:
    verdict = only(records_at([A, B], ratio=1.001)).verdict
    assert verdict.startswith("not separable: torch takes 1.00x [1.00 1.01] as long as jax; a difference of ")
    assert verdict.endswith("would have shown (over 2 machines)")


def test_machines_that_disagree_get_no_verdict_but_their_ratios() -> None:
    row = only(records_at([A, B], blocks=10, ratio=(1.2, 1.6)))
    [ratio] = row.ratios
    assert ratio.machines_disagree
    assert (row.fastest, row.adjusted_p, ratio.estimate.bounds, ratio.p_value) == (None, None, None, None)
    assert row.verdict.startswith(
        "not separable: the machines disagree: torch takes 1.19x at aaaaaaaa, 1.61x at bbbbbbbb (p "
    )
    assert row.verdict.endswith("compare at one machine: leave out across_nodes, or name one with machine")
    assert result_table([row]).repeats_advice == ""


def test_too_few_blocks_for_the_machines_say_how_many_are_missing() -> None:
    row = only(records_at([A, B, C], blocks=6))
    assert row.verdict == (
        "not separable: 6 repeats over 3 machines give no interval: it needs 4 more repeats than machines, 1 more than "
        "there are at these machines"
    )
    assert "measure with --repeats 7, or --repeats auto" in result_table([row]).repeats_advice
    assert only(records_at([A, B, C], blocks=7)).ratios[0].estimate.bounds is not None


def test_machine_without_named_gpus_next_to_one_of_its_gpus_is_no_second_machine() -> None:
    records = records_at([A], blocks=10)
    records = [replace(r, gpu_place=GpuPlace(["GPU-a"])) if r.repeat % 2 else r for r in records]
    assert only(records).verdict.endswith("(over 2 places of one machine)")
    assert noun(["a/GPU-a", "a/GPU-b"]) == "GPUs"
    assert noun(["a", "b/GPU-a"]) == noun(["a"]) == "machines"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kernel": "6.8"}, "2 hosts; kernels: 6.1, 6.8"),
        ({"cpu_model": "another"}, "2 hosts; CPUs: 2 x a CPU, 2 x another"),
        ({"logical_cpus": 4}, "2 hosts; CPUs: 2 x a CPU, 4 x a CPU"),
        ({"gpus": ["H100"]}, "2 hosts; GPUs: H100, none"),
        ({"machine_type": "n1-standard-8"}, "2 hosts; machine types: None, n1-standard-8"),
        ({"memory_bytes": 32 << 30}, "2 hosts; memory: 32.0 GiB to 64.0 GiB"),
        ({"memory_bytes": None}, "2 hosts"),
    ],
)
def test_machines_that_are_not_equal_are_not_compared(change: dict[str, Any], expected: str) -> None:
    row = only(records_at([A, at("b", **change)]))
    assert row.verdict == f"not comparable: machines differ ({expected}) within jax"
    assert (row.machines, row.ratios) == ((), ())


def test_order_of_equal_gpus_does_not_matter() -> None:
    machines = [at("a", gpus=["H100", "A100"]), at("b", gpus=["A100", "H100"])]
    assert difference(records_at(machines)) is None


def test_block_at_two_machines_is_left_out() -> None:
    records = records_at([A, B], blocks=10)
    moved = [
        replace(r, machine=A) if (r.repeat, r.settings.backend) == (1, "torch") else r for r in records
    ]  # torch of this block was measured again elsewhere
    [ratio] = only(moved).ratios
    assert (ratio.estimate.count, sum(one.estimate.count for one in ratio.by_machine)) == (9, 9)


def test_cells_without_a_machine_in_common_are_not_compared() -> None:
    records = [replace(r, machine=A if r.settings.backend == "jax" else B) for r in records_at([A])]
    assert only(records).verdict == f"not comparable: hosts differ: jax {A.host_id}, torch {B.host_id}"


def test_backend_that_failed_at_one_of_the_machines_is_compared_at_the_other() -> None:
    records = [r for r in records_at([A, B], blocks=12) if r.settings.backend == "jax" or r.machine == A]
    row = only(records)
    assert (row.verdict, row.ratios[0].by_machine) == ("jax is fastest: torch takes 1.49x [1.48 1.50] as long", ())


def test_lowest_by_common_blocks_is_the_same_in_every_output() -> None:
    """torch lacks the blocks of the slow machine, so that its mean is the lowest although jax is faster."""
    measured = records_at([A, B], blocks=12, speeds=(1.0, 9.0), ratio=1.2)
    records = [record for record in measured if record.settings.backend == "jax" or record.machine == A]
    row = only(records)
    means = {name: cell.step_time.centre for name, cell in row.cells.items() if cell.step_time}
    assert (row.lowest, min(means, key=lambda name: means[name])) == ("jax", "torch")
    shown = [line.text for line in table_lines(result_table([row])) if line.text.split()[1:2] == ["jax"]]
    assert "1.00x" in shown[0]
    [block] = results.blocks(result_table([row]))
    [relative] = [line for line in block.lines if line.name == "relative to the lowest"]
    assert [value.text for value in relative.values] == ["1", "1.19"]
    [plot], _ = results.findings(result_table([row]).works)
    assert plot.picture is not None
    assert [word.text for word in drawn(plot.picture, Word)] == ["jax", "torch"]
    assert [one.lowest for one in comparisons_of(result_table([row]))] == ["jax"]


def test_interval_after_looks_has_their_confidence() -> None:
    plain, looked = (only(records_at([A, B], blocks=8), **looks).ratios[0] for looks in ({}, {"looks": LOOKS}))
    assert (looked.estimate.half_width or 0) > (plain.estimate.half_width or 1)
    assert looked.p_value == pytest.approx(2 * (plain.p_value or 0))


def test_disturbed_blocks_are_included_with_their_machine() -> None:
    records = records_at([A, B], blocks=8)
    again = [replace(record, attempt=1) for record in records if record.repeat == 3]
    [ratio] = only([*records, *again]).ratios
    assert ratio.all_data is not None
    assert (ratio.estimate.count, ratio.all_data.count) == (8, 9)
    assert ratio.all_data.bounds is not None


def test_mean_over_works_has_no_interval_over_several_machines() -> None:
    rows = table(records_at([A, B]))
    [found] = suite(rows)
    assert (found.ratios["torch"].estimate.bounds, found.ratios["torch"].machines) == (None, (A.host_id, B.host_id))
    assert found.ratios["torch"].estimate.centre == pytest.approx(1.5, rel=0.01)
    assert result_table(rows).summary[0].endswith("torch takes 1.50x as long as jax (2 machines: no interval)")


def test_findings_name_the_method_and_the_ratio_of_each_machine() -> None:
    found = findings.run_findings(result_table(table(records_at([A, B]))))
    [ratio] = [one for one in found if one.kind is FindingKind.RATIO]
    assert (ratio.method, ratio.facts["machines"]) == ("log ratio paired by block, machine as level", "2")
    assert set(ratio.facts) == {"machines", f"ratio at {A.host_id}", f"ratio at {B.host_id}", "p of equal machines"}
    [verdict] = [one for one in found if one.kind is FindingKind.VERDICT]
    assert verdict.facts["machines"] == "2"
    figures = [one for one in found if one.kind is FindingKind.FIGURE and one.metric == findings.STEP_TIME]
    assert {(one.method, one.facts["machines"]) for one in figures} == {
        ("geometric mean over processes, machine as level", "2")
    }
    alone = findings.run_findings(result_table(table(records_at([A]))))
    assert not any("machine" in f"{one.method}{one.facts}" for one in alone)
