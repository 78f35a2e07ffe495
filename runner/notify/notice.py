"""The content of one notification, from which the text of an issue and the document of a webhook are made. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.findings import likely_owner
from keras_matrix.analysis.history.change_points import PACKAGES, Change, VersionChange, packages_around
from keras_matrix.analysis.history.sessions import History
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.traces import OperationShift
from keras_matrix.analysis.views.history_view import ChangeView, HistoryView
from keras_matrix.dashboards.charts.time_series import date
from keras_matrix.records.backends import KERAS_HUB
from keras_matrix.records.task import PREFIX
from keras_matrix.records.text import Unit, percent_change, plural, quantity, unit_for
from keras_matrix.runner.notify.events import Due, Event


@dataclass(frozen=True, slots=True)
class About:
    """What is known about a history besides its sessions: its owner, its page, and what its traces show.

    `settings` are those that distinguish the cell in a matrix, as in `batch_size=32`. `shifts` is None unless a session
    on either side of the change has a trace.
    """

    settings: Sequence[str] = ()
    owner: str | None = None
    page: str | None = None
    shifts: Sequence[OperationShift] | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """One event of a history with all that is stated about it."""

    due: Due
    view: HistoryView
    about: About

    @property
    def history(self) -> History:
        """Return the sessions."""
        return self.view.history

    @property
    def change(self) -> Change:
        """Return the change point. Only events about one have it."""
        return self._shown.change

    @property
    def _shown(self) -> ChangeView:
        view = self.view.change_at(self.due.change.run_id) if self.due.change else None
        assert view is not None
        return view

    @property
    def run_id(self) -> str:
        """Return the session that names the thread of notifications."""
        return self.due.thread.run_id if self.due.thread else self.change.run_id

    @property
    def sides(self) -> tuple[Estimate, Estimate]:
        """Return the levels before and after the change."""
        return self._shown.before, self._shown.after

    @property
    def searches(self) -> tuple[str, ...]:
        """Return the commands that search the version which caused the change."""
        return self._shown.searches

    @property
    def unit(self) -> Unit:
        """Return the unit in which values of this history are shown."""
        figure, baseline = self.history.figure, self.view.baseline
        return unit_for([baseline.value.centre]) if baseline and figure.unit == "s" else Unit(figure.unit, 1.0)

    @property
    def size(self) -> str:
        """Return the shift of the figure, as in `time per step +10.3 %`."""
        return f"{self.history.figure.name} {percent_change(self.change.ratio or 1.0)}"

    @property
    def likely(self) -> str:
        """Return who probably knows about the change, by what changed there."""
        return likely_owner(self.change.versions)


def summary(notice: Notice) -> str:
    """Return the notification in one sentence."""
    title, due = notice.view.title, notice.due
    if due.event is Event.GONE:
        sessions = plural(len(notice.history.valued), "session")
        return f"{title}: with {sessions}, no change is found at {notice.run_id} any more; it was scatter"
    before, after = (quantity(side.centre, notice.unit) for side in notice.sides)
    change = notice.change
    size = f"{notice.size} since {change.run_id} ({date(change.run_id)}), {before} -> {after}"
    said = {
        Event.OPENED: size,
        Event.GROWN: f"the change has grown: {size}",
        Event.RECOVERED: f"recovered: no longer worse since {change.repaired}; the change was {size}",
        Event.INTENDED: f"the change is intended: {change.note}",
        Event.REOPENED: f"not over after all: {size}",
        Event.DUPLICATE: f"duplicate of #{due.original.number if due.original else 0}",
    }
    return f"{title}: {said[due.event]}"


def commands(notice: Notice) -> list[str]:
    """Return the commands that show the change, measure it again and find its cause.

    If packages differ: both sides in one session, and a search over the versions of each package that became newer.
    """
    history = notice.history
    lines = [f"runner history {history.cell_id}"]
    workload, backend = (str(history.settings.get(name, "")) for name in ("workload", "backend"))
    before, after = packages_around(notice.view.assessed, notice.change)
    if before == after or workload.startswith(PREFIX):
        return lines
    for name, packages in (("base", before), ("new", after)):
        python = "python" + ".".join(packages.pop("python", "3").split(".")[:2])
        hub = packages.pop(KERAS_HUB, None)  # with what it requires, pip would install another TensorFlow
        wanted = " ".join(shlex.quote(f"{package}=={version}") for package, version in packages.items())
        lines.append(f"{python} -m venv {name} && {name}/bin/pip install {wanted}")
        if hub is not None:
            one = shlex.quote(f"{KERAS_HUB}=={hub}")
            lines.append(f"{name}/bin/pip install --no-deps {one}  # and what it requires: docs/language-models.md")
    selecting = (f"workload={workload}", f"backend={backend}", *notice.about.settings)
    filters = " ".join(f"--filter {shlex.quote(one)}" for one in selecting)
    return [*lines, f"runner gate --base-env base --new-env new {filters}", *notice.searches]


def machine_changes(notice: Notice) -> list[VersionChange]:
    """Return what changed there and is not part of an environment, so that `runner gate` cannot show its share."""
    return [one for one in notice.change.versions if one.name not in PACKAGES]
