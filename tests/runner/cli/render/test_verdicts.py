"""The table of verdicts in the terminal: a line per backend under headings, and the verdict in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT, RunContext
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.roofline import roofline
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.task import Goal, Metric, TaskRun
from keras_matrix.runner.cli.render.findings import FASTEST, table_lines
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.synthetic_devices import scaled_run

CLEAR = {"tensorflow": 0.010, "jax": 0.020}
ALIKE = {"tensorflow": 0.0100, "jax": 0.0101}


def records_of(step_times_s: dict[str, float], workload: str = "mnist_mlp") -> list[Record]:
    """Return five repeats of each backend, which scatter by some per cent."""
    scatter = [0.0, 0.01, 0.02, 0.03, 0.04]
    return [
        make_record(
            time_s * (1 + share * (-1 if backend == "jax" else 1)),
            n,
            settings=make_settings(workload=workload, backend=backend),
        )
        for backend, time_s in step_times_s.items()
        for n, share in enumerate(scatter)
    ]


def printed(rows: list[Row], context: RunContext = NO_CONTEXT, width: int | None = None) -> list[str]:
    return [line.text for line in table_lines(result_table(rows, context), width)]


def test_only_the_fastest_is_marked() -> None:
    clear, alike = (
        table_lines(result_table(table(records_of(CLEAR)))),
        table_lines(result_table(table(records_of(ALIKE)))),
    )
    assert [line.text.split()[1] for line in clear if line.text.startswith("* ")] == ["tensorflow"]
    assert [line.style for line in clear if line.text.startswith("* ")] == [FASTEST]
    assert [line.text for line in alike if line.text.startswith("* ")] == []


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(None, []), (200, []), (95, ["steady epoch"]), (80, ["first epoch", "steady epoch"])],
)
def test_narrow_terminal_loses_columns_in_their_order_and_says_so(width: int | None, left_out: list[str]) -> None:
    lines = printed(table(records_of(CLEAR)), width=width)
    assert [heading for heading in ("samples/s", "first epoch", "steady epoch") if heading not in lines[0]] == left_out
    notes = [line for line in lines if line.startswith("(a wider terminal")]
    assert notes == ([f"(a wider terminal also shows: {', '.join(left_out)})"] if left_out else [])
    backends = [line for line in lines if "tensorflow  " in line or "jax  " in line]
    assert width is None or max(map(len, backends)) <= width


def test_generating_cells_have_a_column_of_tokens_per_second() -> None:
    generate = [
        replace(
            one,
            settings=replace(one.settings, workload="gpt2", phase="generate"),
            cell_id=f"{one.cell_id[:-4]}beef",
            times=replace(one.times, samples_per_s=100.0, tokens_per_s=4800.0),
        )
        for one in records_of(CLEAR)
    ]
    heads, *lines = printed(table([*records_of(CLEAR), *generate]))
    at = slice(heads.index("ratio to lowest") + len("ratio to lowest"), heads.index("first epoch"))
    tokens, none = (line[at].split() for line in lines if line.startswith("* tensorflow"))
    assert none[0] == "-"
    assert float(tokens[0].replace(",", "")) == pytest.approx(48 * float(tokens[1].replace(",", "")), rel=0.01)


def test_share_of_the_peak_is_a_column_once_the_peaks_are_measured() -> None:
    rows = table(records_of(CLEAR))
    (cell_id, other) = (cell.cell_id for cell in rows[0].cells.values())
    nothing = roofline([("mnist_mlp", cell) for cell in rows[0].cells.values()], {}, None).shares[0]
    share = replace(nothing, share_of_peak=0.42, peak_flop_per_s=1e12)
    lines = printed(rows, replace(NO_CONTEXT, shares={cell_id: share, other: nothing}))
    assert lines[0].endswith("  of peak")
    assert [line.rpartition("  ")[2].strip() for line in lines if "ms  " in line] == ["42.0 %", "-"]


@pytest.mark.parametrize("name", ["feed", "seed", "batch_size"])
def test_parameter_named_like_a_setting_has_its_own_line_and_figure(name: str) -> None:
    times_s = {1: 0.00144, 2: 0.0679}
    cells = {value: make_settings(workload="pkg.mod:build", params={name: value}) for value in times_s}
    records = [make_record(times_s[value], n, settings=one) for value, one in cells.items() for n in range(3)]
    lines = printed(table(records))
    figures = {title: lines[lines.index(title) + 1].split()[1:3] for title in lines if title.startswith("pkg.mod")}
    assert figures == {f"pkg.mod:build {name}=1": ["1.44", "ms"], f"pkg.mod:build {name}=2": ["67.9", "ms"]}


def external_command() -> list[Record]:
    metrics = [Metric("speed", 100.0, "samples/s", goal=Goal.HIGHER), Metric("loss", 0.5, None, goal=Goal.LOWER)]
    task = TaskRun("train", ["./train"], "speed", metrics)
    return [make_record(None, n, settings=make_settings(workload="task train"), task=task) for n in range(2)]


def test_what_is_printed_of_a_table(golden: Golden) -> None:
    """Mutation: the line on the same work is printed for a row of one backend, too."""
    failed = make_record(None, 0, Status.CRASH, settings=make_settings(backend="jax"), reason="signal 11")
    with_command = replace(NO_CONTEXT, command="runner --matrix night.yaml --set threads=1")
    tables = {
        "a backend that is fastest": printed(table(records_of(CLEAR))),
        "backends that are not separable": printed(table(records_of(ALIKE)), with_command),
        "one backend": printed(table(records_of({"jax": 0.01}))),
        "a cell without figures": printed(table([*records_of({"tensorflow": 0.01}), failed])),
        "an external command": printed(table(external_command())),
        "several devices": printed(table(scaled_run(counts=(1, 2)))),
    }
    texts = [f"# {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in tables.items()]
    golden.check("verdicts.txt", "\n".join(texts))
