"""The charts of a dashboard from the rows of a question: dot plots, time series, and cells below their roofs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from keras_matrix.analysis.history.sessions import device_name
from keras_matrix.analysis.scaling import communication_text
from keras_matrix.dashboards.charts import axes, time_series
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import (
    PERCENTILES,
    CallFigures,
    Strip,
    StripPicture,
    alone,
    call_pictures,
    epoch_axis,
    interval_marks,
    memory_axis,
    memory_strip,
    start_strip,
    strip_picture,
)
from keras_matrix.dashboards.charts.figure_table import by_work
from keras_matrix.dashboards.charts.picture import MIDDLE, TO_MIDDLE, Dot, ScaledPicture, Segment, Word, slot_of
from keras_matrix.dashboards.charts.roofline import RooflinePoint, Scene, drawn, rate
from keras_matrix.dashboards.charts.time_series import SeriesPicture
from keras_matrix.records.settings import MODEL
from keras_matrix.records.text import (
    MEMORY_UNITS,
    MILLIJOULE,
    PERCENT,
    Unit,
    bytes_text,
    interval,
    number,
    percentage,
    plural,
    quantity,
    ratio_text,
    unit_for,
)

Row = Mapping[str, Any]
RATIO = Unit("x", 1.0)
MOST_TRENDS = 60
INPUT_PARTS = ("fetch", "preparation", "batching_and_copy", "interference")


def comparisons(rows: Sequence[Row]) -> list[StripPicture]:
    """Return one picture per piece of work: the time of a step relative to the backend with the lowest."""
    ends = [value for row in rows for value in (row["low"], row["ratio"], row["high"]) if value]
    if not ends:
        return []
    axis = axes.logarithmic([1.0, *ends], "time per step relative to the lowest, x (logarithmic)", RATIO)
    return [_comparison(list(group), axis) for _, group in _by_work(rows)]


def starts(rows: Sequence[Row]) -> list[StripPicture]:
    """Return one picture per piece of work: the first epoch (hollow) and a steady one (filled)."""
    values = [v for row in rows for v in (row["first_epoch_time_s"], row["steady_epoch_time_s"]) if v]
    if not values:
        return []
    axis = epoch_axis(values)
    return [StripPicture(work, "", axis, [_start(row, axis) for row in group]) for work, group in _by_work(rows)]


def memories(rows: Sequence[Row]) -> list[StripPicture]:
    """Return one picture per piece of work: peaks on the host (filled) and on the device (hollow)."""
    values = [v for row in rows for v in (row["host_bytes"], row["device_bytes"]) if v]
    if not values:
        return []
    axis = memory_axis(values)
    device_unit = unit_for([row["device_bytes"] for row in rows if row["device_bytes"]], MEMORY_UNITS)
    strip = partial(_memory, device_unit)
    return [StripPicture(work, "", axis, [strip(row, axis) for row in group]) for work, group in _by_work(rows)]


def calls(rows: Sequence[Row]) -> list[StripPicture]:
    """Return one picture per work: a strip for each backend and way of calling its model.

    A call that was measured in an older run than the others of its ladder is left out: they were not interleaved.
    """
    newest: dict[tuple[str, str], str] = {}
    for row in rows:
        key = (str(row["ladder_id"]), str(row["backend"]))
        newest[key] = max(newest.get(key, ""), str(row["run_id"]))
    groups: dict[tuple[str, str], list[CallFigures]] = {}
    for row in rows:
        if row["run_id"] == newest[str(row["ladder_id"]), str(row["backend"])]:
            groups.setdefault((str(row["ladder"]), str(row["ladder_id"])), []).append(_call(row))
    count_by_title = Counter(title for title, _ in groups)
    return call_pictures(
        [
            (title if count_by_title[title] == 1 else f"{title} (work {ladder_id})", figures)
            for (title, ladder_id), figures in groups.items()
        ]
    )


def _call(row: Row) -> CallFigures:
    percentiles = {
        name: (row[f"call_time_{name}_s"], row[f"{name}_low"], row[f"{name}_high"])
        for name in PERCENTILES
        if row[f"call_time_{name}_s"]
    }
    texts = {name: text for name, text in json.loads(row["facts"]).items() if name not in ("ladder", "ladder id")}
    is_reference, ratio = row["call"] == row["reference"], (row["ratio"], row["low"], row["high"])
    return CallFigures(
        str(row["backend"]),
        str(row["call"]),
        is_reference,
        row["call_time_s"],
        percentiles,
        ratio if row["ratio"] else None,
        texts,
    )


def worker_scalings(rows: Sequence[Row]) -> list[StripPicture]:
    """Return one picture per work of an FC mode: the efficiency by backend, each mark labelled with its workers.

    A mode with a single work is named by the mode alone. Findings of earlier versions do not identify the work.
    """
    work_counts = Counter(mode for mode, _ in {(row["mode"], row["divided_work_id"]) for row in rows})
    return _scalings([_of_workers(row, alone=work_counts[row["mode"]] == 1) for row in rows], "worker")


def _of_workers(row: Row, *, alone: bool) -> Row:
    title = str(row["mode"] if alone else row["divided_work"] or row["mode"])
    group = (str(row["mode"]), str(row["divided_work_id"]))
    return {**row, "count": row["workers"], "title": title, "group": group, "gain": "", "notes": [], "how": ""}


def device_scalings(rows: Sequence[Row]) -> list[StripPicture]:
    """Return one picture per divided work: the efficiency by backend, each mark labelled with its number of devices."""
    return _scalings([_of_devices(row) for row in rows if row["speed_up"] is not None], "device")


def _of_devices(row: Row) -> Row:
    title = f"{row['divided_work']}{', weights divided' if row['distribution'] == MODEL else ''}"
    group = (title, str(row["divided_work_id"]))
    gain_text, notes = f"{ratio_text(row['speed_up'])} ", [] if row["fit"] == "yes" else ["not fit"]
    method_text = f" ({row['communication_method']})" if row["communication_method"] else ""
    return {
        **row,
        "count": row["devices"],
        "title": title,
        "group": group,
        "gain": gain_text,
        "notes": notes,
        "how": method_text,
    }


def _scalings(rows: Sequence[Row], noun: str) -> list[StripPicture]:
    """Return a picture per group: `noun` is what rows count; `gain`, `notes` and `how` are shown with it.

    Groups whose rows have one title, as works of two runs may, are named with their id.
    """
    with_efficiency = [row for row in rows if row["efficiency"] is not None]
    if not with_efficiency:
        return []
    ends = [value for row in with_efficiency for value in (row["efficiency"], row["high"] or row["efficiency"])]
    axis = axes.from_zero([1.0, *ends], f"throughput over one {noun}'s times the {noun}s, %", PERCENT)
    groups = [group for _, group in _by(with_efficiency, "group")]
    count_by_title = Counter(group[0]["title"] for group in groups)
    return [
        StripPicture(
            _group_title(group[0], count_by_title),
            "",
            axis,
            [_scaling(str(b), noun, list(backend_rows), axis) for b, backend_rows in _by(group, "backend")],
        )
        for group in groups
    ]


def _group_title(row: Row, times: Mapping[str, int]) -> str:
    return row["title"] if times[row["title"]] == 1 else f"{row['title']} (work {row['divided_work_id']})"


def _by_work(rows: Iterable[Row]) -> Iterable[tuple[str, list[Row]]]:
    groups = by_work(list(rows))
    return [(str(g[0]["work"]), sorted(g, key=lambda row: slot_of(str(row["backend"])))) for g in groups]


def _by(rows: Iterable[Row], name: str) -> Iterable[tuple[Any, list[Row]]]:
    ordered = sorted(rows, key=lambda row: (slot_of(str(row[name])), str(row[name])))
    return [(key, list(group)) for key, group in groupby(ordered, lambda row: row[name])]


def _comparison(rows: Sequence[Row], axis: Axis) -> StripPicture:
    first_row = rows[0]
    lowest = str(first_row["against"])
    strips = [_lowest(lowest, axis), *(_ratio(row, axis) for row in rows if row["ratio"])]
    details = " · ".join(
        str(text) for text in (first_row["verdict"], first_row["same_work"], first_row["caveats"]) if text
    )
    return StripPicture(str(first_row["work"]), details, axis, strips)


def _lowest(backend: str, axis: Axis) -> Strip:
    slot = slot_of(backend)
    dot = Dot(axis.place(1.0), MIDDLE, slot, f"{backend}: the others are divided by it")
    return Strip(backend, "1", ["the lowest"], strip_picture(slot, None, f"{backend}: the lowest", [dot]))


def _ratio(row: Row, axis: Axis) -> Strip:
    backend, slot = str(row["backend"]), slot_of(str(row["backend"]))
    interval_text = interval(row["low"], row["high"], row["ratio"]) or "no interval"
    figure = ratio_text(row["ratio"])
    notes = [interval_text, plural(int(row["blocks"] or 0), "block")]
    tip = f"{backend}: {figure} {interval_text}"
    lines, dot = interval_marks((row["ratio"], row["low"], row["high"]), axis, MIDDLE, slot, tip)
    return Strip(backend, figure, notes, strip_picture(slot, None, tip, [*lines, dot]))


def _start(row: Row, axis: Axis) -> Strip:
    return start_strip(str(row["backend"]), axis, alone(row["first_epoch_time_s"]), alone(row["steady_epoch_time_s"]))


def _memory(unit: Unit, row: Row, axis: Axis) -> Strip:
    anonymous, power, energy = row["anonymous_bytes"], row["device_power_w"], row["joules_per_sample"]
    notes = [] if anonymous is None else [f"anonymous {bytes_text(anonymous)}"]
    notes += [] if power is None else [f"{number(power)} W"]
    notes += [] if energy is None else [quantity(energy, MILLIJOULE)]
    peak = row["device_bytes"]
    device = (alone(peak), unit) if peak is not None or row["device"] != "cpu" else None
    return memory_strip(str(row["backend"]), axis, alone(row["host_bytes"]), device, notes)


def _scaling(backend: str, noun: str, rows: Sequence[Row], axis: Axis) -> Strip:
    slot, most = slot_of(backend), max(rows, key=lambda row: int(row["count"]))
    notes = [f"{most['gain']}with {plural(int(most['count']), noun)}", *most["notes"]]
    if most["communication_share"] is not None:
        notes.append(f"{communication_text(most['communication_share'])} in communication{most['how']}")
    figure, lines, dots, words = percentage(most["efficiency"]), list[Segment](), list[Dot](), list[Word]()
    for row in rows:
        tip = f"{backend}, {row['gain']}with {plural(int(row['count']), noun)}: {percentage(row['efficiency'])}"
        line, dot = interval_marks((row["efficiency"], row["low"], row["high"]), axis, 16, slot, tip)
        lines, dots = [*lines, *line], [*dots, dot]
        words.append(Word(dot.x, 34 + TO_MIDDLE, str(row["count"]), anchor="middle"))
    picture = strip_picture(slot, 44, f"{backend}: {figure} {notes[0]}", [*lines, *dots, *words])
    return Strip(backend, figure, notes, picture)


def input_stalls(rows: Sequence[Row]) -> list[SeriesPicture]:
    """Return a time series of the share of input in a step for each cell and host that has a value."""
    groups = groupby(rows, lambda row: (row["cell_id"], row["machine"]))
    measured_groups = [[row for row in group if row["stall_share"] is not None] for _, group in groups]
    return [_input_stall(group) for group in measured_groups if group][:MOST_TRENDS]


def _input_stall(rows: Sequence[Row]) -> SeriesPicture:
    first_row, newest = rows[0], rows[-1]
    points = [
        time_series.SeriesPoint(str(row["run_id"]), row["stall_share"], row["low"], row["high"], _input_tip(row))
        for row in rows
    ]
    series = time_series.Series(
        f"{first_row['work']} on {first_row['backend']}",
        f"cell {first_row['cell_id']} · host {first_row['machine']} · {_device(first_row)}",
        slot_of(str(first_row["backend"])),
        ("input stall, share of a step", "%"),
        points,
        cell_id=str(first_row["cell_id"]),
    )
    text = f"{plural(len(rows), 'session')}, newest {percentage(newest['stall_share'])}; {_input_tip(newest)}"
    return time_series.picture(series, text)


def _input_tip(row: Row) -> str:
    shares = {name.replace("_", " "): row[f"{name}_share"] for name in INPUT_PARTS}
    share_texts = [f"{name} {percentage(value)}" for name, value in shares.items() if value is not None]
    limit = [f"bottleneck {row['bottleneck']}"] if row["bottleneck"] else []
    ceiling = [] if row["ceiling_speed_up"] is None else [f"ceiling {ratio_text(row['ceiling_speed_up'])}"]
    return "; ".join([*limit, *([", ".join(share_texts)] if share_texts else []), *ceiling])


def trends(rows: Sequence[Row]) -> list[SeriesPicture]:
    """Return a time series for each cell, host and device that has a value."""
    groups = groupby(rows, lambda row: (row["cell_id"], row["host_id"], row["device"]))
    pictures = [trend for _, group in groups if (trend := _trend([row for row in group if row["step_time_s"]]))]
    return pictures[:MOST_TRENDS]


def _trend(rows: Sequence[Row]) -> SeriesPicture | None:
    if not rows:
        return None
    first_row = rows[0]
    series = time_series.Series(
        f"{first_row['work']} on {first_row['backend']}",
        f"cell {first_row['cell_id']} · host {first_row['host_id']} · {_device(first_row)}",
        slot_of(str(first_row["backend"])),
        ("time per step", "s"),
        [
            time_series.SeriesPoint(str(row["run_id"]), row["step_time_s"], row["low"], row["high"], _tip(row))
            for row in rows
        ],
        [_change(row, index) for index, row in enumerate(rows) if row["change_ratio"] is not None and index],
        cell_id=str(first_row["cell_id"]),
    )
    newest = quantity(rows[-1]["step_time_s"], series.unit())
    return time_series.picture(series, f"{plural(len(rows), 'session')}, newest {newest}")


def _device(row: Row) -> str:
    return device_name(str(row["device"])) if row["device"] else "no device"


def _tip(row: Row) -> str:
    versions_text = f"Keras {row['keras_version']}, {row['backend']} {row['backend_version']}"
    return f"{plural(row['processes'], 'process', 'processes')}; {versions_text}"


def _change(row: Row, index: int) -> time_series.ChangePlace:
    verdict, why = str(row["change_verdict"]), row["change_note"] or row["change_look"] or ""
    return time_series.ChangePlace(index, row["change_ratio"], verdict, f"{verdict}: {why}", str(row["run_id"]))


def scatter(rows: Sequence[Row]) -> list[ScaledPicture]:
    """Return the cells whose intensity is known, each below its own roof."""
    points = tuple(
        RooflinePoint(
            str(row["work_id"] or row["cell_id"]),
            str(row["work"]),
            str(row["backend"]),
            row["achieved_flop_per_s"],
            row["intensity_flop_per_byte"],
            f"{row['work']} on {row['backend']}: {_rate(row)}",
            row["roof_flop_per_s"],
        )
        for row in rows
        if row["intensity_flop_per_byte"] and row["achieved_flop_per_s"]
    )
    scene = Scene("Cells below their roofs", (), None, points)
    return [drawn(scene)] if points else []


def rates(rows: Sequence[Row]) -> list[tuple[str, str, str, int]]:
    """Return work, backend, achieved rate with its share of the peak, and slot of each cell that has a rate."""
    timed_rows = [row for row in rows if row["achieved_flop_per_s"]]
    return [(str(row["work"]), str(row["backend"]), _rate(row), slot_of(str(row["backend"]))) for row in timed_rows]


def _rate(row: Row) -> str:
    return f"{rate(row['achieved_flop_per_s'])}, {_of_peak(row)}"


def _of_peak(row: Row) -> str:
    if row["share_of_peak"] is None:
        return "peak not known"
    mfu_text = "" if row["mfu"] is None else f", MFU {percentage(row['mfu'])}"
    return f"{percentage(row['share_of_peak'])} of the peak{mfu_text}"
