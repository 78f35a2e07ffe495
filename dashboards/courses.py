"""Panels of two axes: the time series of a cell over its sessions, and cells as points under their roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from dashboards.dot_plots import slot_of
from dashboards.format import plural, quantity, share
from dashboards.roofline import NARROW, WIDE, Drawing, Point, Scene, draw, rate
from dashboards.time_series import Change, Picture, Series, picture
from dashboards.time_series import Point as SessionPoint

Row = Mapping[str, Any]
MOST_TRENDS = 60


def trends(rows: Sequence[Row]) -> list[Picture]:
    """Return a time series for each cell, host and device that has a value."""
    groups = groupby(rows, lambda row: (row["cell_id"], row["host_id"], row["device"]))
    found = [one for _, group in groups if (one := _trend([row for row in group if row["step_time_s"]]))]
    return found[:MOST_TRENDS]


def _trend(rows: Sequence[Row]) -> Picture | None:
    if not rows:
        return None
    first = rows[0]
    series = Series(
        f"{first['workload']} on {first['backend']}",
        f"cell {first['cell_id']} · host {first['host_id']} · {first['device'] or 'no device'}",
        slot_of(str(first["backend"])),
        ("time per step", "s"),
        [SessionPoint(str(row["run_id"]), row["step_time_s"], row["low"], row["high"], _tip(row)) for row in rows],
        [_change(row, index) for index, row in enumerate(rows) if row["change_ratio"] is not None and index],
        cell_id=str(first["cell_id"]),
    )
    newest = quantity(rows[-1]["step_time_s"], series.unit())
    return picture(series, f"{plural(len(rows), 'session')}, newest {newest}")


def _tip(row: Row) -> str:
    versions = f"Keras {row['keras_version']}, {row['backend']} {row['backend_version']}"
    return f"{plural(row['processes'], 'process', 'processes')}; {versions}"


def _change(row: Row, index: int) -> Change:
    verdict, why = str(row["change_verdict"]), row["change_note"] or row["change_look"] or ""
    return Change(index, row["change_ratio"], verdict, f"{verdict}: {why}", str(row["run_id"]))


def scatter(rows: Sequence[Row]) -> list[tuple[Drawing, Drawing]]:
    """Return the cells whose intensity is known, each under its own roof, wide and narrow; empty without any."""
    points = tuple(
        Point(
            str(row["work"]),
            str(row["backend"]),
            row["achieved_flop_per_s"],
            row["intensity_flop_per_byte"],
            f"{row['work']} on {row['backend']}: {rate(row['achieved_flop_per_s'])}, {_of_peak(row)}",
            row["roof_flop_per_s"],
        )
        for row in rows
        if row["intensity_flop_per_byte"] and row["achieved_flop_per_s"]
    )
    scene = Scene("Cells under their roofs", (), None, points)
    return [(draw(scene, WIDE), draw(scene, NARROW))] if points else []


def rates(rows: Sequence[Row]) -> list[tuple[str, str, str, int]]:
    """Return work, backend, achieved rate with its share of the peak, and slot of each cell that has a rate."""
    return [
        (
            str(row["work"]),
            str(row["backend"]),
            f"{rate(row['achieved_flop_per_s'])}, {_of_peak(row)}",
            slot_of(str(row["backend"])),
        )
        for row in rows
        if row["achieved_flop_per_s"]
    ]


def _of_peak(row: Row) -> str:
    if row["share_of_peak"] is None:
        return "peak not known"
    mfu = "" if row["mfu"] is None else f", MFU {share(row['mfu'])}"
    return f"{share(row['share_of_peak'])} of the peak{mfu}"
