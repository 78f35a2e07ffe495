"""Limits, looks and rules in the documents are those of the code: such a constant changes in both or in neither."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_matrix.analysis import fc, flops, parity, proofs, racing, roofline
from keras_matrix.analysis.comparison import machines, same_work
from keras_matrix.analysis.history import change_points, sessions
from keras_matrix.analysis.regression import gate, regression_kinds
from keras_matrix.analysis.stalls import analysis, bottleneck, report
from keras_matrix.analysis.stats import blocks as figures
from keras_matrix.analysis.stats import processes, sequential
from keras_matrix.analysis.stats.cell_statistics import STATISTICS
from keras_matrix.analysis.stats.sequential import LOOKS, PRECISION_TARGET
from keras_matrix.analysis.surroundings import disturbance, examination, readings
from keras_matrix.analysis.surroundings.readings import Limit
from keras_matrix.dashboards.charts.scaling import scaling_lines
from keras_matrix.models.fc.ranks import MEETING_LIMIT_S
from keras_matrix.models.fc.worker_group import BATCH_SCALE
from keras_matrix.models.inputs.pipelines.decode import MOST_PIXELS
from keras_matrix.records.fc.communication import WATCHED_EPOCH_S, WATCHED_EPOCHS
from keras_matrix.records.fc.spec import LEARNING_RATE
from keras_matrix.records.instruments.usage import MOST_POINTS
from keras_matrix.runner.checks.proofs import GROUP
from keras_matrix.runner.cli.inputs import convert, finetune, make_images, stalls
from keras_matrix.runner.executors.supervise.sampling import PSS_SHARE
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.measure import judge, scheduler
from keras_matrix.uploader.bigquery import ddl, warehouse
from keras_matrix.uploader.cli.flags import DEADLINE_MIN
from keras_matrix.uploader.schema import LONGEST_ROW_BYTES
from tests.scripts import script

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TIMES = {1: "once", 2: "twice", 3: "three times", 4: "four times"}
NUMBERS = {2: "two", 3: "three", 5: "five", 6: "six", 10: "ten"}
QUARTERS = {0.25: "a quarter", 0.5: "half", 0.75: "three quarters"}
MINUTES = {60.0: "a minute"}
DAYS = {24 * 3600 * 1000: "a day"}
OFTEN = figures.MIN_BLOCKS


def words(name: str) -> str:
    """A document as one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def row(text: str, first: str) -> list[str]:
    """The first row of a text's tables that begins with this cell."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def number(cell: str) -> float:
    """The first number of a cell; a percentage as a share."""
    found = re.search(r"(\d+(?:\.\d+)?(?:e-?\d+)?)( %)?", cell)
    assert found is not None
    return float(found[1]) / (100 if found[2] else 1)


def percent(share: float) -> str:
    return f"{share * 100:g} %"


def short(power: float) -> str:
    return f"{power:.0e}".replace("e-0", "e-")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("`resolution`", examination.RESOLUTION),
        ("`other_cpu`", examination.OTHER_CPU),
        ("`steal`", examination.STEAL),
        ("`load`", examination.LOAD_PER_CPU),
        ("`cpu_pressure`", examination.CPU_PRESSURE),
        ("`memory_pressure`, `io_pressure`", examination.STALL),
        ("`memory_limit`", examination.MEMORY_USED),
        (
            "`gpu`, `gpu_clocks`, `gpu_temperature`, `gpu_throttling`, `gpu_persistence`, `gpu_users`, `gpu_mig`, "
            "`gpu_ecc`",
            readings.TEMPERATURE_C,
        ),
    ],
)
def test_verdicts_of_a_check_change_at_the_documented_limits(name: str, limit: Limit) -> None:
    _, doubtful, bad = row((DOCS / "noise.md").read_text(encoding="utf-8"), name)
    assert (number(doubtful), number(bad)) == pytest.approx((limit.doubtful, limit.bad))


def test_block_is_replaced_from_its_documented_limits_on() -> None:
    rule = (DOCS / "noise.md").read_text(encoding="utf-8").partition("## A block that was disturbed")[2]
    for name, limit in (
        ("`steal`", disturbance.STEAL_LIMIT),
        ("`other_cpu`", disturbance.OTHER_CPU_LIMIT),
        ("`memory_pressure`", disturbance.STALL_LIMIT),
        ("`io_pressure`", disturbance.STALL_LIMIT),
    ):
        assert number(row(rule, name)[2]) == limit
    assert disturbance.STEAL_LIMIT == PRECISION_TARGET


@pytest.mark.parametrize(
    ("title", "figure"),
    [
        ("loss of step 1", "loss"),
        ("norm of the gradient at step 1", "gradient_norm"),
        ("gradient at step 1, the worst weight's", "gradient"),
        ("update at step 2, the worst weight's", "update"),
        ("loss of the worst of 20 steps (float64: of the first 3)", "losses"),
    ],
)
def test_parity_outputs_deviate_from_their_documented_limits_on(title: str, figure: str) -> None:
    _, float64, float32 = row((DOCS / "work.md").read_text(encoding="utf-8"), title)
    assert (number(float64), number(float32)) == (
        parity.LIMITS["float64"][figure],
        parity.LIMITS["float32"][figure],
    )


def test_outputs_deviate_from_their_documented_limit_on() -> None:
    title = "outputs, of a backend that does not train"
    _, float64, float32 = row((DOCS / "work.md").read_text(encoding="utf-8"), title)
    assert {"float64": number(float64), "float32": number(float32)} == parity.OUTPUTS_LIMITS


# What reaches users without the site: the packages, and what they copy or start. Generated pages are only on the site.
SHIPPED = (
    "analysis",
    "dashboards",
    "models",
    "records",
    "runner",
    "uploader",
    "action.yml",
    "ci/action",
    "compose.yaml",
    "docker",
    "matrices",
    "matrix.yaml",
    "matrix.schema.json",
    "src",
    "ci/setup",
    "docs/examples",
)
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b(#[\w-]+)?")


def named_pages(*places: str) -> Iterator[tuple[str, str]]:
    """Yield each page that a text file of these files and folders names, with the file."""
    starts = [ROOT / place for place in places]
    paths = [path for start in starts for path in (sorted(start.rglob("*")) if start.is_dir() else [start])]
    for path in paths:
        if path.is_file() and path.suffix in ("", ".py", ".yml", ".yaml", ".json", ".html", ".sql", ".ipynb"):
            text = path.read_text(encoding="utf-8")
            yield from ((str(path.relative_to(ROOT)), match[0]) for match in PAGE.finditer(text))


def test_page_that_the_product_names_is_in_the_repository_and_has_the_heading() -> None:
    """Messages and help among them; `ci/links.py` checks the links of pages."""
    named = list(named_pages(*SHIPPED))
    assert len(named) > 100
    assert len({path for path, _ in named}) > 60
    anchors = script("links").markdown_anchors
    for path, name in named:
        page, _, heading = name.partition("#")
        assert (ROOT / page).is_file(), f"{path}: {name}"
        assert not heading or heading in anchors((ROOT / page).read_text(encoding="utf-8")), f"{path}: {name}"


def test_page_that_a_script_or_a_study_names_is_committed_or_generated() -> None:
    named = list(named_pages("ci", "lab", ".github", ".ci", "Makefile", "pyproject.toml"))
    assert len(named) > 30
    generated = script("pages").PAGES
    for path, name in named:
        page = name.partition("#")[0]
        assert (ROOT / page).is_file() or page.removeprefix("docs/") in generated, f"{path}: {name}"


LOOKED_AT = [str(at) for at in LOOKS.blocks]
STATED = [
    ("statistics.md", f"none below {OFTEN} blocks"),
    (
        "statistics.md",
        f"{sequential.LEAST_DEGREES} more than machines, the degrees of freedom of {OFTEN} blocks at one",
    ),
    ("statistics.md", f"At p < {sequential.DISAGREEMENT_LEVEL:g} they do not: the row has no verdict"),
    ("statistics.md", f"their memory within {percent(machines.MEMORY_TOLERANCE)}"),
    ("statistics.md", f"looks at {', '.join(LOOKED_AT)} blocks"),
    ("statistics.md", f"Benjamini-Hochberg at {percent(figures.LEVEL)} for the names of the fastest"),
    ("statistics.md", f"at {percent(gate.LEVEL)} for the gate"),
    ("statistics.md", f"with {percent(figures.POWER)} power at the {percent(figures.LEVEL)} level"),
    (
        "statistics.md",
        f"beyond {NUMBERS[round(processes.OUTLIER_MADS / 1.4826)]} robust standard deviations (1.4826 MAD)",
    ),
    ("statistics.md", f"Mann-Kendall at {percent(processes.TREND_LEVEL)}, and a Theil-Sen line of at least"),
    (
        "statistics.md",
        f"at least {percent(processes.LEAST_TREND)} from end to end; at least {processes.MIN_TREND_EPOCHS} ep",
    ),
    ("statistics.md", f"against normal values, simulated, at {percent(processes.MODES_LEVEL)}"),
    ("statistics.md", f"one confidence, {percent(gate.GATE_LOOKS.confidences[0])} (Pocock 1977)"),
    (
        "statistics.md",
        f"with {percent(1 - racing.DELTA)} the candidate that it returns is within {percent(racing.WITHIN)} of",
    ),
    ("statistics.md", f"ever reaches {1 / racing.DELTA:g} in {percent(racing.DELTA)} of races at most"),
    (
        "statistics.md",
        "a drop needs {} blocks, telling the two best of 24 apart {}, of 200 {}.".format(
            *racing.fewest_blocks(racing.RaceRule(24)), racing.fewest_blocks(racing.RaceRule(200))[1]
        ),
    ),
    ("devices.md", f"95 % interval from {OFTEN} repeats on"),
    ("comparing.md", f"No interval below {OFTEN} blocks"),
    ("comparing.md", f"takes {OFTEN} blocks, then adds more"),
    ("comparing.md", f"rule looks after {', '.join(LOOKED_AT[:-1])} and {LOOKED_AT[-1]} blocks"),
    ("comparing.md", f"{LOOKED_AT[-1]} blocks are the most"),
    ("comparing.md", f"(less than {TIMES[scheduler.ROOM_FACTOR]} the largest one is free)"),
    ("comparing.md", f"is measured again, {TIMES[scheduler.MOST_REPLACEMENTS]}."),
    ("comparing.md", f"for {NUMBERS[scheduler.SURELY_REPLACED]} blocks of a session"),
    ("comparing.md", f"beyond them for {percent(scheduler.REPLACED_SHARE)} of its blocks"),
    ("comparing.md", f"{NUMBERS[sessions.LEAST_SESSIONS]} other sessions of the cell"),
    ("comparing.md", f"{NUMBERS[sessions.LEAST_PROCESSES]} processes on each side"),
    ("comparing.md", f"is a discovery among the run's comparisons at {percent(gate.LEVEL)}"),
    ("statistics.md", f"the interval lies beyond +{percent(regression_kinds.FIRST_EPOCH_TOLERANCE)}"),
    (
        "statistics.md",
        f"the interval lies beyond {1 + regression_kinds.SCATTER_TOLERANCE:g} times, and new scatters by",
    ),
    ("statistics.md", f"new scatters by {percent(regression_kinds.LEAST_SCATTER)} or more"),
    ("noise.md", f"counts only while the run moves less than {disturbance.OWN_STORAGE_LIMIT_BYTES_PER_S >> 20} MiB/s"),
    ("noise.md", f"over {disturbance.MIN_CPU_S:g} s of CPU time by about 1 %; blocks with less"),
    ("noise.md", "for {} and for {} such pairs".format(*examination.PLANNED_PAIRS)),
    ("noise.md", f"Below {examination.MIN_PAIRS} pairs there is no figure"),
    ("noise.md", f"Over {percent(disturbance.STALL_LIMIT)} of the measured epochs give the warning `gpu_throttled`"),
    *(
        ("lab/history.md", f"{length} (threshold {threshold:g})")
        for length, threshold in change_points.THRESHOLDS.items()
    ),
    ("history.md", f"from {change_points.LEAST_FOR_CHANGES} sessions on"),
    ("history.md", f"a level lasts at least {NUMBERS[change_points.SHORTEST_LEVEL]} sessions"),
    ("lab/history.md", f"At most {change_points.MOST_CHANGES} changes are sought between two annotated ones"),
    ("lab/history.md", f"is clipped to within {NUMBERS[round(change_points.CLIP)]} scatters of their median"),
    ("python.md", f"With fewer than {sessions.LEAST_SESSIONS} sessions it is not known"),
    ("python.md", f"a session has fewer than {NUMBERS[sessions.LEAST_PROCESSES]} processes"),
    ("troubleshooting.md", f"a row above {LONGEST_ROW_BYTES >> 20} MiB"),
    ("bigquery.md", f"(minutes; default: {DEADLINE_MIN}) limits everything"),
    ("bigquery.md", f"whose tables vanish after {DAYS[warehouse.DAY_MS]}"),
    ("bigquery.md", f"`<table>{ddl.APPENDED}`, and the tables' names are views"),
    ("lab/roofline.md", f"| {percent(flops.SAME)} | ours and arithmetic |"),
    ("lab/roofline.md", f"| {percent(flops.FORWARD)} | a tool's forward pass and ours |"),
    ("lab/roofline.md", f"| {percent(flops.TRAIN)} | a tool's training step and {flops.TRAINING_PER_FORWARD} x ours"),
    ("lab/roofline.md", f"is recorded, and above {percent(roofline.QUIET_SHARE)} it is a note"),
    ("instruments.md", f"A course has at most {MOST_POINTS} points"),
    ("lab/instruments.md", f"as that took less than {percent(PSS_SHARE)} of the process's time"),
    ("work.md", f"of each weight within {parity.INITIAL_LIMIT:g} standard errors, constants exactly"),
    ("work.md", f"a float32 loss, and at most {parity.OWN_FACTOR:g} times what one of the two backends deviates"),
    ("work.md", f"it is at most {parity.ROUNDING_FACTOR:g} times what *each*"),
    ("work.md", f"it is at most {parity.NUDGE_FACTOR:g} times what one of the two deviates from *itself*"),
    ("work.md", f"FLOPs by more than {percent(same_work.FLOPS_TOLERANCE)}, the comparison is"),
    ("lab/fc.md", f"Limits: {short(proofs.PROOF_LIMITS['float64'])} and {short(proofs.PROOF_LIMITS['float32'])}."),
    ("fc-modes.md", f"One learning rate, {short(LEARNING_RATE)}, for all"),
    ("fc-modes.md", f"one batch, N(0, {BATCH_SCALE**2:g}), drawn from the seed"),
    ("fc.md", f"are timed in epochs of {NUMBERS[GROUP]}"),
    ("fc.md", f"take more than {fc.NOTABLE_GAP:g} times the step of the native loop"),
    ("lab/fc.md", f"## {fc.SECTION} "),
    ("fc.md", f"stays below {QUARTERS[fc.FAR_BELOW]} of the machine's best"),
    (
        "lab/fc.md",
        f"takes {NUMBERS[WATCHED_EPOCHS]} more epochs (of at most {WATCHED_EPOCH_S:g} s each where a step is",
    ),
    ("fc.md", f"Workers that have not all met within {MINUTES[MEETING_LIMIT_S]} are an error"),
    ("stalls.md", f"the stall is below {percent(bottleneck.LEAST_STALL)}, or its interval contains 0"),
    ("lab/inputs.md", f"than the pipeline reads, by bandwidth ({percent(bottleneck.SATURATED)} count as reached)"),
    ("lab/inputs.md", f"if the probe read at least {QUARTERS[bottleneck.FILES_OF_SMALL_READS]} as many files as 4 KiB"),
    ("stalls.md", f"with a caveat if they differ by more than {bottleneck.APART * 100:g} points"),
    ("stalls.md", f"Fewer than {OFTEN} blocks give no interval"),
    ("stalls.md", f"the fewest that come within {percent(analysis.GOOD_ENOUGH - 1)}"),
    ("stalls.md", f"a record file needs about {analysis.RUNS_PER_BATCH} requests per batch"),
    ("stalls.md", f"decoded samples fit into {QUARTERS[analysis.CACHE_SHARE]} of the memory"),
    ("stalls.md", f"above 1 beyond its interval, and at least {analysis.LEAST_GAIN:g}, are listed"),
    ("stalls.md", f"without an interval, those of at least {analysis.LEAST_GAIN_WITHOUT_INTERVAL:g}"),
    ("stalls.md", f"applies the best {NUMBERS[stalls.APPLIED]} changes"),
    ("stalls.md", f"is within a factor of {1 + report.TOLERANCE:g}"),
    ("inputs.md", f"over {MOST_PIXELS:,} pixels"),
    ("inputs.md", f"The default, {catalog.load().workloads['finetune'].params['dataset_size'].default}, means at most"),
    ("inputs.md", f"{finetune.START_S:g} s, plus {finetune.SAMPLE_S:g} s for each sample (`--dataset-size`)"),
    ("inputs.md", f"default {convert.SIZE_BYTES >> 20} MiB)"),
    ("lab/inputs.md", f"at quality {make_images.QUALITY}:"),
    (
        "troubleshooting.md",
        f"first measured epoch took over {judge.SECOND_EPOCH_LIMIT:g} times the median of the later ones",
    ),
    ("troubleshooting.md", f"Tried {NUMBERS[scheduler.INFRA_ATTEMPTS]} times (a missing backend once), then pending"),
    ("matrix.md", f"half-width of the 95 % intervals, {PRECISION_TARGET:g} by default"),
]


@pytest.mark.parametrize(("name", "stated"), STATED)
def test_documented_constants_are_those_of_the_code(name: str, stated: str) -> None:
    assert stated in words(name)


def test_parameters_of_finetune_that_have_details_exist() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "inputs.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for first in rows for name in re.findall(r"`(\w+)[`:]", first)}
    params = catalog.load().workloads["finetune"].params
    assert len(named) > len(params) / 2
    assert named <= {*params}


def test_every_figure_of_report_and_terminal_has_an_entry_in_the_glossary() -> None:
    entries = {
        word.strip()
        for line in (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
        for word in line.split("|")[1].split(",")
    }
    shown = {one.label for one in STATISTICS if one.in_tables} | {
        "time per step",
        "time per call",
        "smallest difference",
        *(line.name for line in scaling_lines([])),
    }
    assert {label for label in shown if label.partition(",")[0] not in entries} == set()
