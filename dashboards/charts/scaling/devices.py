"""The pictures of Keras workloads on several devices: speed-up by number of devices. No markup.

Pure functions. Only measured values are drawn; pictures beyond those that a page shows are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.scaling import DeviceScaling, on_one_device
from keras_matrix.analysis.views.result_table import ResultTable
from keras_matrix.dashboards.charts.dot_plots import slot_of
from keras_matrix.dashboards.charts.scaling.gain import NO_GAIN, GainPanel, Gains, most, panel
from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import MODEL


@dataclass(frozen=True, slots=True)
class DevicePictures:
    """The pictures of a run's cells on several devices, and for each row its title and the result of each cell."""

    panels: list[GainPanel]
    lines: list[tuple[str, list[str]]]
    left_out: list[str]


def pictures(table: ResultTable) -> DevicePictures:
    """Return the pictures of a run's table; empty without cells on several devices."""
    groups: dict[str, list[DeviceScaling]] = {}
    for scaling in table.scalings:
        if scaling.speed_up is not None:
            groups.setdefault(_work(scaling), []).append(scaling)
    left_out = list[str]()
    by_work = [(work.row.title, [view.scaling.text for view in work.cells if view.scaling]) for work in table.works]
    lines = [(title, texts) for title, texts in by_work if texts]
    panels = most([_panel(group) for group in groups.values()], "devices", left_out)
    return DevicePictures(panels, lines, left_out)


def _work(one: DeviceScaling) -> str:
    """Return the identity of the work that is divided, and of what is divided, for all backends and devices."""
    return canonical(replace(on_one_device(one.settings), backend="", distribution=one.settings.distribution))


def _panel(group: Sequence[DeviceScaling]) -> GainPanel:
    settings = group[0].settings
    gains: dict[str, Gains] = {}
    for one in sorted(group, key=lambda one: (slot_of(one.settings.backend), one.devices)):
        assert one.speed_up is not None
        points = gains.setdefault(one.settings.backend, dict(NO_GAIN))
        points[one.devices] = (one.speed_up.centre, one.speed_up.low, one.speed_up.high)
    divided = "weights divided" if settings.distribution == MODEL else "rows divided"
    return panel(group[0].work, f"batch of {settings.batch_size} on all devices together, {divided}", gains, "device")
