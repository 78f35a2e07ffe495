"""The report of a run: one self-contained HTML page.

`render` is pure: equal arguments give equal pages. The page loads nothing, runs no script, and shows every name and
output as text: everything is escaped, and a Content-Security-Policy admits only the page's own style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.ratios import share_text
from keras_matrix.analysis.comparison.run_summary import subject
from keras_matrix.analysis.comparison.table import Row
from keras_matrix.analysis.keras_cost import KerasCost
from keras_matrix.analysis.views.call_ladder import CallLadder
from keras_matrix.analysis.views.result_table import ResultTable
from keras_matrix.analysis.views.warnings_view import warnings_by_rule
from keras_matrix.dashboards.charts import axes, figure_table, parallel, picture, pictures, scaling, usage
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import StripPicture
from keras_matrix.dashboards.charts.figure_table import Grid, GridRow
from keras_matrix.dashboards.charts.picture import scale, slot_of, unbroken
from keras_matrix.dashboards.report import environment, failures, results, traces
from keras_matrix.dashboards.report.inputs import Inputs, inputs
from keras_matrix.records import files, left_out
from keras_matrix.records.schema import Record
from keras_matrix.records.text import NOTHING, moment, plural, printable

if TYPE_CHECKING:
    from jinja2 import Environment

    from keras_matrix.dashboards.report.predictions import Predictions

TEMPLATES = Path(__file__).parents[1] / "templates"


def render(records: Sequence[Record], table: ResultTable, about: Mapping[str, object], pending: int = 0) -> str:
    """Return the page of a run.

    `table` is that of these records, `about` the content of the run's `run.json` (any key may be missing), `pending`
    the number of planned repeats without a record.
    """
    rows, run_context = table.rows, table.run_context
    plots, ratio_axis = results.findings(table.works)
    drawn_pictures = _drawn(rows, run_context) | {"calls": pictures.ladder_pictures(table.works)}
    blocks, fc_pictures = results.blocks(table), parallel.pictures(table)
    input_pictures = inputs(rows, run_context.stalls)
    return rendered(
        "report.html",
        stylesheet("inputs") + _rules(drawn_pictures, ratio_axis, fc_pictures.steps) + _input_rules(input_pictures),
        heading=_heading(rows, about, run_context),
        answer=table.answer.text,
        when=_when(about, run_context),
        merge=run_context.merge,
        moment=moment,
        matrix_text=str(about.get("matrix_text") or ""),
        tallies=results.tallies(records, pending),
        superseded=failures.superseded(records),
        left_out=left_out.read(about),
        unread=run_context.unread,
        findings=plots,
        suites=table.summary,
        ratio_axis=ratio_axis,
        backends=results.backends(rows),
        blocks=blocks,
        statistics=figure_table.explained(blocks),
        drawn=drawn_pictures,
        usages_left_out=usage.left_out(rows, run_context.usage_series),
        parallel=fc_pictures,
        devices=scaling.pictures(table),
        keras_costs=keras_cost_tables(table.keras_costs),
        calls=call_tables(table.call_ladders),
        inputs=input_pictures,
        priced=run_context.prices is not None,
        tf32=any("TF32" in plot.caveats for plot in plots),
        device_memory=any(record.memory.peak_device_memory_bytes is not None for record in records),
        sheets=traces.sheets(rows, run_context.traces),
        predictions=_predictions(run_context),
        failures=failures.failures(records, rows),
        warnings=failures.warnings(warnings_by_rule(records, table)),
        caveats=failures.caveats(table),
        comparison_caveats=sum(bool(row.caveats) for row in rows),
        peak_notes=run_context.notes if rows and not run_context.has_peaks else (),
        machine_line=environment.machine_line(records),
        run_facts=environment.run_facts(about),
        machines=environment.machines(records),
        grids=environment.grids(records),
    )


def _predictions(run_context: RunContext) -> Predictions | None:
    """Return the section of the run's verification; few runs have one."""
    if run_context.verification is None:
        return None
    from keras_matrix.dashboards.report.predictions import predictions

    return predictions(run_context.verification)


def _drawn(rows: Sequence[Row], run_context: RunContext) -> dict[str, Any]:
    """Return the pictures of epochs, starts, memory and usage."""
    return {
        "epochs": pictures.epoch_pictures(rows),
        "starts": pictures.start_pictures(rows),
        "memories": pictures.memory_pictures(rows),
        "usages": usage.pictures(rows, run_context.usage_series),
    }


def _heading(rows: Sequence[Row], about: Mapping[str, object], run_context: RunContext) -> str:
    """Return what was measured; of a run without a record, when it was started."""
    return subject(rows) or _when(about, run_context)


def _when(about: Mapping[str, object], run_context: RunContext) -> str:
    if run_context.merge is not None:
        return f"Merge of {plural(len(run_context.merge.runs), 'run')}"
    return f"Run of {moment(about['started_at'])}" if about.get("started_at") else str(about.get("run_id", "A run"))


def _rules(
    drawn_pictures: Mapping[str, Sequence[StripPicture]], ratios: Axis | None, steps: Sequence[StripPicture]
) -> str:
    """Return the style of the rules behind the strips of a page's pictures, and behind the findings."""
    rules = [axes.rules(".findings > .finding > .plot", ratios, strong=1.0)] if ratios else []
    for key, strip_pictures in ("e", drawn_pictures["epochs"]), ("u", drawn_pictures["usages"]), ("p", steps):
        rules += [
            axes.rules(f"#{key}{index} div.plot", picture.axis) for index, picture in enumerate(strip_pictures, 1)
        ]
    for key, strip_pictures in (
        ("start", drawn_pictures["starts"]),
        ("memory", drawn_pictures["memories"]),
        ("calls", drawn_pictures["calls"]),
    ):  # each all on one axis
        rules += [axes.rules(f"#{key} div.plot", picture.axis) for picture in strip_pictures[:1]]
    return "".join(rules)


def _input_rules(input_pictures: Inputs) -> str:
    picture_by_key = {"shares": input_pictures.split, "queue": input_pictures.queue}
    return "".join(
        axes.rules(f"#input-{key} div.plot", picture.axis) for key, picture in picture_by_key.items() if picture
    )


def rendered(template: str, style: str, script: str = "", forms: str = "'none'", **values: object) -> str:
    """Return a page from a template, with its style sheet, its script, and the policy that admits only these."""
    from markupsafe import Markup  # with Jinja: imported only by commands that write a page

    policy_text = policy(style, script, forms)
    page = templates().get_template(template)
    return page.render(style=Markup(style), script=Markup(script), policy=policy_text, **values)  # noqa: S704 - the project's own files


def policy(style: str, script: str = "", forms: str = "'none'") -> str:
    """Return the Content-Security-Policy that admits this style sheet, this script if any, and nothing else."""
    scripts_text = f" script-src '{_digest(script)}';" if script else ""
    styles_text = f"style-src '{_digest(style)}'; img-src data:; base-uri 'none'; form-action {forms}"
    return f"default-src 'none';{scripts_text} {styles_text}"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write(path: Path, html: str) -> None:
    """Replace the page at `path` atomically. Raises `OSError`."""
    # The output of a cell may contain half of a surrogate pair, which cannot be encoded in UTF-8.
    files.replace(path, html.encode("utf-8", "replace").decode())


def stylesheet(*names: str) -> str:
    """Return the style sheet of every page, followed by the named ones."""
    return "".join((TEMPLATES / f"{name}.css").read_text(encoding="utf-8") for name in ("report", *names))


def term(label: str) -> str:
    """Return the anchor of the explanation of a figure on a page."""
    return "t-" + re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def words(text: str) -> list[str]:
    """Return the words of a text, each figure with its unit as one of them."""
    return unbroken(" ".join(text.split())).split(" ")


def _shown(value: object) -> object:
    """Return a value of a page with its texts printable and no figure apart from its unit; markup stays markup."""
    if not isinstance(value, str):
        return value
    if hasattr(value, "__html__"):
        text = printable(value)
        return value if text is value else type(value)(text)
    return unbroken(value)


def _markup(draw: Callable[..., str]) -> Callable[..., str]:
    """Return a function of SVG as one whose result a template does not escape again."""
    from markupsafe import Markup  # with Jinja: imported only by commands that write a page

    return lambda *values: Markup(draw(*values))  # noqa: S704 - `svg` escapes every text


@cache
def templates() -> Environment:
    """Return the templates, compiled once; all values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from keras_matrix.dashboards.report.compiled_templates import CompiledTemplates

    jinja_environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
        bytecode_cache=CompiledTemplates(TEMPLATES / "__pycache__"),
    )
    jinja_environment.globals.update(slot_of=slot_of, scale=scale, NOTHING=NOTHING)
    for draw in (picture.svg, picture.shapes, picture.key, picture.swatch):  # each escapes what it draws
        jinja_environment.globals[draw.__name__] = _markup(draw)
    jinja_environment.filters["term"] = term
    jinja_environment.filters["plural"] = plural
    jinja_environment.filters["words"] = words
    return jinja_environment


def call_tables(ladders: Sequence[CallLadder]) -> list[Grid]:
    """Return what the ways of calling a model cost: a table for each work and backend."""
    return [
        Grid(
            ladder.title,
            list(ladder.columns[1:]),
            [GridRow(name, values) for name, *values in ladder.rows],
            "; ".join(ladder.runtimes),
        )
        for ladder in ladders
    ]


def keras_cost_tables(keras_costs: Sequence[KerasCost]) -> list[Grid]:
    """Return what Keras costs: a table for each work, a row for each backend."""
    works: dict[str, list[KerasCost]] = {}
    for cost in keras_costs:
        works.setdefault(cost.key, []).append(cost)
    return [_cost_table(costs) for costs in works.values()]


def _cost_table(costs: Sequence[KerasCost]) -> Grid:
    names = list(dict.fromkeys(part.name for cost in costs for part in cost.parts))
    caveats_text = " ".join(f"{cost.backend}: {cost.caveat}." for cost in costs if cost.caveat)
    return Grid(costs[0].work, ["Keras over native", *names], [_cost_row(cost, names) for cost in costs], caveats_text)


def _cost_row(cost: KerasCost, names: Sequence[str]) -> GridRow:
    shares = {part.name: share_text(part.share) for part in cost.parts}
    return GridRow(cost.backend, [cost.ratio_text, *(shares.get(name, NOTHING) for name in names)])
