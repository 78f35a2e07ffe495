"""The page as text: complete, inert, and with dashes for missing values."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.merge import MergedRun, MergeSummary
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.analysis.views.warnings_view import warnings_by_rule
from keras_matrix.dashboards.charts import pictures
from keras_matrix.dashboards.charts.picture import Dot, MarkGroup, Segment
from keras_matrix.dashboards.report import failures, results
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import Evidence, Harness, Memory, Record, Status, Surroundings, Times
from keras_matrix.records.text import number
from tests.conftest import make_record, make_settings
from tests.dashboards import thousand
from tests.dashboards.charts.drawn import drawn
from tests.dashboards.conftest import REPEATS

VOID = {"meta", "link", "br", "hr", "img", "input"}
ALLOWED_TAGS = frozenset(
    re.findall(
        r"\w+",
        "html head meta title link style body header main nav section article h1 h2 h3 p a b i ul li dl dt dd div span "
        "code small table thead tbody tr th td figure figcaption details summary pre "
        "svg defs g circle path rect line text use",
    )
)


class Page(HTMLParser):
    """The elements of a page: tags, attributes, text, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_page_is_well_formed_and_has_only_allowed_elements(synthetic: Any) -> None:
    page = Page(synthetic.html)
    assert page.open == []
    assert {tag for tag, _ in page.tags} <= ALLOWED_TAGS


def test_policy_contains_the_hash_of_the_style_sheet(synthetic: Any) -> None:
    style = re.findall(r"<style>(.*?)</style>", synthetic.html, re.DOTALL)
    assert len(style) == 1
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    page = Page(synthetic.html)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:;")
    assert "unsafe" not in policy
    assert "script-src" not in policy


def test_page_refers_to_no_external_resource(synthetic: Any) -> None:
    for _, attributes in Page(synthetic.html).tags:
        assert "src" not in attributes
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        # A trace is in the folder of its run, next to the page.
        assert (attributes.get("href") or "#").startswith(("#", "data:", "traces/"))
    assert "url(" not in synthetic.html
    assert "@import" not in synthetic.html


def test_every_link_and_shape_has_its_target(synthetic: Any) -> None:
    tags = Page(synthetic.html).tags
    names = [attributes["id"] for _, attributes in tags if "id" in attributes]
    links = {(a.get("href") or "")[1:] for _, a in tags if (a.get("href") or "").startswith("#")}
    assert len(names) == len(set(names))
    assert links <= set(names)


def test_hostile_name_is_escaped_everywhere(synthetic: Any, hostile_name: str) -> None:
    assert hostile_name not in synthetic.html
    assert html.escape(hostile_name, quote=False) in synthetic.html
    assert hostile_name in Page(synthetic.html).text


def test_hostile_run_json_is_escaped(synthetic: Any, about: dict[str, object], hostile_name: str) -> None:
    hostile = dict.fromkeys(about, hostile_name) | {"versions": {hostile_name: hostile_name}}
    page = report.render(synthetic.records, result_table(synthetic.rows), hostile)
    assert hostile_name not in page
    assert {tag for tag, _ in Page(page).tags} <= ALLOWED_TAGS


def test_hostile_record_is_escaped(synthetic: Any, hostile_name: str) -> None:
    record = synthetic.records[0]
    hostile = replace(
        record,
        reason=hostile_name,
        warnings=[f"{hostile_name}: {hostile_name}; {hostile_name}"],
        versions={hostile_name: hostile_name},
        machine=replace(
            record.machine, cpu_model=hostile_name, gpus=[hostile_name], kernel=hostile_name, machine_type=hostile_name
        ),
        device=replace(record.device, name=hostile_name, model=hostile_name),
        evidence=Evidence(exception=hostile_name, result_problem=hostile_name, output_tail=hostile_name),
    )
    both = [hostile, replace(hostile, repeat=9, status=Status.ERROR)]
    page = report.render(both, result_table(table(both)), {})
    assert hostile_name not in page
    assert {tag for tag, _ in Page(page).tags} <= ALLOWED_TAGS


def test_machine_type_is_shown_if_known(synthetic: Any) -> None:
    record = synthetic.records[0]
    known = [replace(record, machine=replace(record.machine, machine_type="n1-standard-8"))]
    assert "machine type" in Page(report.render(known, result_table(table(known)), {})).text
    assert "n1-standard-8" in Page(report.render(known, result_table(table(known)), {})).text
    assert "machine type" not in Page(report.render([record], result_table(table([record])), {})).text


def test_page_begins_with_what_was_measured_and_the_answer_and_then_the_picture(
    synthetic: Any, about: dict[str, object]
) -> None:
    """Counts, command and seed come after the answer and the picture."""
    page = report.render(synthetic.records, result_table(synthetic.rows), about)
    expected = result_table(synthetic.rows).answer.text
    assert expected.startswith("jax is fastest in 3 of 6 rows; 3 are undecided; over ")
    parts = [
        "<h1>6 workloads on tensorflow, jax and torch</h1>",
        'class="answer">',
        'class="finding">',
        '<svg class="plot"',
    ]
    places = [page.index(part) for part in [*parts, 'class="tallies"', 'class="facts"']]
    assert places == sorted(places)
    assert expected in Page(page).text


def test_smallest_difference_is_that_of_the_verdict() -> None:
    """Processes scatter by 30 %, together on both backends: the ratio is known to 1 %."""
    common = [1.0, 1.3, 0.8, 1.1, 0.9]
    records = [
        make_record(base * factor * (1 + 0.002 * (repeat % 3)), repeat, settings=make_settings(backend=backend))
        for backend, base in (("jax", 0.01), ("torch", 0.0121))
        for repeat, factor in enumerate(common if backend == "jax" else [1.001 * one for one in common])
    ]
    (row,) = table(records)
    (ratio,) = row.ratios
    (block,) = results.blocks(result_table([row]))
    (line,) = [line for line in block.lines if line.name == "smallest difference"]
    expected = number((ratio.smallest_difference or 0) * 100)
    assert [value.text for value in line.values] == [expected, expected]
    assert all((cell.smallest_difference or 0) > 0.2 for cell in row.cells.values())


def test_start_of_a_cell_names_compiling_as_a_part_of_the_process() -> None:
    plain = make_record(0.01, settings=make_settings(backend="jax"))
    times = replace(
        plain.times,
        build_time_s=6.0,
        training_time_s=9.0,
        first_epoch_time_s=6.43,
        trace_time_s=1.0,
        compile_time_s=10.5,
        first_step_time_s=5.41,
    )

    def notes(wall_time_s: float) -> list[str]:
        record = replace(plain, times=times, harness=Harness(wall_time_s=wall_time_s))
        (picture,) = pictures.start_pictures(table([record]))
        return picture.strips[0].notes

    assert notes(20.0)[1:] == ["first step 5.41 s · whole process: trace 1.00 s, compile 10.5 s"]
    assert notes(11.0)[1:] == ["first step 5.41 s · trace and compile not measured"]


def test_every_workload_backend_and_verdict_is_shown(synthetic: Any) -> None:
    text = Page(synthetic.html).text
    for row in synthetic.rows:
        assert row.title in text
        assert row.verdict in text
    for backend in TRAINING_BACKENDS:
        assert f">{backend}</th>" in synthetic.html


def test_table_has_median_and_p95_of_the_processes(synthetic: Any) -> None:
    text = Page(synthetic.html).text
    assert re.search(r"median of processes , ms [0-9.]+", text)
    assert re.search(r"p95 of processes , ms [0-9.]+", text)


def test_fastest_is_marked_only_if_the_row_names_one(synthetic: Any) -> None:
    named = [row for row in synthetic.rows if row.fastest]
    assert 0 < len(named) < len(synthetic.rows)
    assert synthetic.html.count(">fastest</span>") == len(named)
    assert synthetic.html.count('class="fastest"') == len(named)


def test_every_failure_is_shown_with_status_reason_and_output(synthetic: Any) -> None:
    text = Page(synthetic.html).text
    for failure in failures.failures(synthetic.records, synthetic.rows):
        assert failure.texts[0] in text
        assert f">{failure.label}</span>" in synthetic.html
    assert "1/8 ━━━━ 3s 402ms/step" in text
    assert "\x1b" not in synthetic.html


def test_failures_with_the_same_cause_are_grouped(synthetic: Any) -> None:
    found = failures.failures(synthetic.records, synthetic.rows)
    assert sorted(failure.label for failure in found) == ["device_mismatch", "timeout", "unsupported"]
    assert {failure.where for failure in found} == {"repeats 0, 1, 2, 3, 4", "repeat 2"}


def test_output_per_failure_shrinks_with_the_number_of_failures(synthetic: Any) -> None:
    record = synthetic.records[0]
    evidence = Evidence(exit_code=1, output_tail="x" * 7999 + "!")
    failed = [
        replace(record, cell_id=f"{number:016x}", status=Status.ERROR, evidence=evidence, times=Times())
        for number in range(200)
    ]
    outputs = {failure.output for failure in failures.failures(failed, [])}
    assert outputs == {"x" * 1999 + "!"}
    assert {failure.output for failure in failures.failures(failed[:2], [])} == {evidence.output_tail}


def test_warning_is_split_into_rule_problem_and_advice(synthetic: Any) -> None:
    found = {
        entry.label: entry
        for entry in failures.warnings(warnings_by_rule(synthetic.records, result_table(synthetic.rows)))
    }
    assert sorted(found) == ["busy", "still_warming_up"]
    assert found["busy"].texts == ("other processes used 14.0 % of the CPU time",)
    assert found["busy"].advice == "stop them"


def test_warning_of_another_format_is_shown_unchanged(synthetic: Any) -> None:
    record = replace(synthetic.records[0], warnings=["odd"])
    (entry,) = failures.warnings(warnings_by_rule([record], result_table(table([record]))))
    assert (entry.label, entry.texts, entry.advice) == ("warning", ("odd",), "")


def test_superseded_attempts_are_not_counted(synthetic: Any) -> None:
    counts = {tally.name: tally.count for tally in results.tallies(synthetic.records, pending=2)}
    assert counts == {"ok": 78, "unstable": 1, "unsupported": 5, "failed": 6, "pending": 2}
    end = ": measured again, and only one attempt of each repeat is counted here."
    assert failures.superseded(synthetic.records) == f"1 earlier attempt failed because of the infrastructure{end}"
    measured = next(record for record in synthetic.records if record.status is Status.OK)
    twice = [*synthetic.records, replace(measured, attempt=measured.attempt + 1)]
    assert failures.superseded(twice) == (
        f"1 earlier attempt was disturbed and 1 earlier attempt failed because of the infrastructure{end}"
    )
    assert failures.superseded([measured]) is None


def test_each_measured_epoch_is_a_dot(synthetic: Any) -> None:
    strips = [strip for picture in pictures.epoch_pictures(synthetic.rows) for strip in picture.strips]
    measured = sum(len(record.times.epoch_times_s) for record in synthetic.records)
    marks = [mark for strip in strips for mark in drawn(strip.picture, Dot)]
    assert len(marks) == measured
    assert not any(mark.hollow for mark in marks)


def test_tooltip_of_a_process_lists_its_epochs_or_their_range(synthetic: Any) -> None:
    record = synthetic.records[0]
    for count, listed in ((1, ""), (3, " (epochs 10.0, 11.0, 12.0)"), (50, " (epochs 10.0 to 59.0)")):
        epochs = [(10 + number) * 0.001 * record.resolved.steps_per_epoch for number in range(count)]
        one = replace(record, times=replace(record.times, step_time_s=0.011, epoch_times_s=epochs))
        [picture] = pictures.epoch_pictures(table([one]))
        [group] = drawn(picture.strips[0].picture, MarkGroup)
        assert group.tip == f"repeat 0: 11.0 ms{listed}"


def test_discarded_first_epoch_is_hollow_next_to_the_steady_one(synthetic: Any) -> None:
    strips = [strip for picture in pictures.start_pictures(synthetic.rows) for strip in picture.strips]
    measured = sum(1 for record in synthetic.records if record.times.first_epoch_time_s)
    assert sum(mark.hollow for strip in strips for mark in drawn(strip.picture, Dot)) == measured
    assert all(picture.axis.log for picture in pictures.start_pictures(synthetic.rows))


def test_device_memory_is_drawn_if_measured(synthetic: Any) -> None:
    assert "No device memory was measured" in synthetic.html
    records = [replace(record, memory=Memory(2 << 30, 1 << 30)) for record in synthetic.records[:3]]
    page = report.render(records, result_table(table(records)), {})
    assert "No device memory was measured" not in page
    assert "device 1.00\u00a0GiB (1.00, 1.00, 1.00)" in page


def unmeasured(record: Record) -> Record:
    return replace(
        record,
        times=Times(),
        memory=Memory(),
        resolved=None,
        device=None,
        surroundings=Surroundings(),
        versions={},
        machine=replace(
            record.machine,
            physical_cores=None,
            memory_bytes=None,
            kernel=None,
            os=None,
            container=None,
        ),
    )


def test_missing_value_is_a_dash_and_not_zero(synthetic: Any, render_of: Callable[..., str]) -> None:
    page = Page(render_of([unmeasured(record) for record in synthetic.records[:6]]))
    text = page.text
    assert "None" not in text
    assert "nan" not in re.findall(r"\w+", text)
    assert "time per step , ms - -" in text
    assert "No epoch was measured." in text
    assert "No memory was measured." in text


def test_hint_of_a_dash_has_the_reason(synthetic: Any) -> None:
    hints = [a.get("title") or "" for tag, a in Page(synthetic.html).tags if tag == "td"]
    assert any(hint.startswith("not measured (timeout: the time limit passed") for hint in hints)


@pytest.mark.parametrize("pending", [0, 7])
def test_a_run_without_records_still_has_a_page(pending: int) -> None:
    text = Page(report.render([], result_table([]), {}, pending)).text
    assert "nothing was measured yet." in text
    assert f"{pending} pending" in text


def test_one_process_on_one_backend_still_has_a_page(synthetic: Any, render_of: Callable[..., str]) -> None:
    text = Page(render_of(synthetic.records[:1])).text
    assert "no interval: 1 process" in text
    assert "nothing to compare" in text


def test_a_thousand_cells_of_five_processes_are_a_page_of_at_most_five_megabytes() -> None:
    page = thousand.page()
    assert len(thousand.records()) == thousand.CELLS * REPEATS
    assert page.count("</tbody>") > thousand.CELLS / len(TRAINING_BACKENDS)
    assert len(page.encode()) <= 5_000_000


def test_parity_peak_and_caveats_are_on_the_page(synthetic: Any) -> None:
    text = Page(synthetic.html).text
    assert "same work, with an explained deviation: 3e-9 (float64 gradient)" in text
    assert "tensorflow and torch, float64 update 4e-02, limit 1e-06: a cause that was found" in text
    assert "share of peak , % 43.0 215 GFLOP/s" in text
    links = re.findall(r'<a class="caveat" href="#([^"]+)">1 caveat</a>', synthetic.html)
    caveats = failures.caveats(result_table(synthetic.rows))
    assert sorted(links) == sorted(caveat.anchor for caveat in caveats) != []
    assert all(line in text for caveat in caveats for line in caveat.texts)


def test_page_without_peaks_names_the_command_that_measures_them(synthetic: Any) -> None:
    run_context = RunContext(notes=("no peaks measured: run `runner roofline` there",))
    text = Page(report.render(synthetic.records, result_table(synthetic.rows, run_context), {})).text
    assert "Share of peak: no peaks measured: run `runner roofline` there." in text
    assert "share of peak , %" not in text
    assert "same work not checked" in text


def test_merged_page_names_its_runs_the_excluded_cells_and_the_command_for_alternating_runs(
    synthetic: Any, hostile_name: str
) -> None:
    runs = (
        MergedRun("run-1", "2026-01-01T02:00:00+00:00", ("tensorflow", "jax"), hostile_name, "matrix.yaml"),
        MergedRun("run-2", "", ("torch",), "keras 3.15.1", "matrix.yaml", ("image:torch-cpu, sha256:0123",)),
    )
    merge = MergeSummary(runs, (f"left out: {hostile_name}",), "runner --matrix m.yaml --executor docker")
    page = report.render(synthetic.records, result_table(synthetic.rows, RunContext(merge=merge)), {})
    found = Page(page)
    assert hostile_name not in page
    assert ({tag for tag, _ in found.tags} <= ALLOWED_TAGS, found.open) == (True, [])
    for text in (
        "Merge of 2 runs",
        "run-1 tensorflow jax 1 January 2026, 02:00 UTC",
        "run-2 torch - keras 3.15.1 image:torch-cpu, sha256:0123",
        f"left out: {hostile_name}",
        "measured in separate sessions",
        "measure them alternately: runner --matrix m.yaml --executor docker",
    ):
        assert text in found.text
    alone = Page(report.render([], result_table([], RunContext(merge=MergeSummary(runs[:1]))), {})).text
    assert "Merge of 1 run" in alone
    assert "separate sessions" not in alone


def test_page_of_one_run_has_no_merge_section(synthetic: Any) -> None:
    assert "Merged runs" not in synthetic.html
    assert "separate sessions" not in synthetic.html


def test_equal_values_give_equal_pages(synthetic: Any, about: dict[str, object]) -> None:
    assert (
        report.render(synthetic.records, result_table(synthetic.rows, synthetic.run_context), about, 2)
        == synthetic.html
    )
    backwards = synthetic.records[::-1]
    assert report.render(backwards, result_table(table(backwards), synthetic.run_context), about, 2) == synthetic.html


def test_page_is_replaced_atomically_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report.write(path, "old")
    report.write(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "new ?"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_of_a_page_has_no_leftovers(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        report.write(tmp_path / "report.html", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_figure_of_a_process_is_the_mean_of_its_measured_epochs() -> None:
    record = make_record()
    assert record.resolved is not None
    mean_s = 2.0 / record.resolved.steps_per_epoch
    times = Times(epoch_times_s=[1.0, 1.0, 4.0], epoch_time_median_s=1.0, step_time_s=mean_s)
    (picture,) = pictures.epoch_pictures(table([replace(record, times=times)]))
    [group] = drawn(picture.strips[0].picture, MarkGroup)
    assert len([mark for mark in group.marks if isinstance(mark, Segment)]) == 1
    assert group.tip.startswith("repeat 0: 40.0 ms (epochs 20.0, 20.0, 80.0)")
    reading = (report.TEMPLATES / "reading.html").read_text(encoding="utf-8")
    assert "one process gives one figure, the mean of its measured epochs" in reading
    assert (MIN_BLOCKS, "Fewer than five processes give no interval" in reading) == (5, True)


def test_every_figure_of_the_table_links_to_its_explanation(synthetic: Any) -> None:
    whole_page = Page(synthetic.html)
    anchors = {attributes.get("id") for _, attributes in whole_page.tags}
    links = [str(a["href"]) for tag, a in whole_page.tags if tag == "a" and str(a.get("href")).startswith("#t-")]
    assert len(links) > 20
    assert {link for link in links if link.removeprefix("#") not in anchors} == set()


def test_open_verdict_has_the_command_that_would_decide_it() -> None:
    records = [
        make_record(0.01 * (1 + sign * share), repeat, settings=make_settings(backend=backend))
        for backend, sign in (("tensorflow", 1), ("jax", -1))
        for repeat, share in enumerate([-0.02, -0.01, 0.0, 0.01, 0.02])
    ]
    html = report.render(records, result_table(table(records), RunContext(command="runner --matrix night.yaml")), {})
    page = Page(html)
    assert re.search(r"<span>[\d.]+\u00a0%\W*</span>", html), "a figure and its unit are one word"
    assert "to decide: runner --matrix night.yaml --filter workload=mnist_mlp --repeats auto" in " ".join(
        page.text.split()
    )
