"""Cells on the nodes of a Ray cluster: `--executor ray` and its options."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from keras_matrix.records.fc import rules
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors import Executor, Running
from keras_matrix.runner.executors.places import Fitting, Place, Places
from keras_matrix.runner.executors.ray.cluster import Cluster
from keras_matrix.runner.executors.ray.executor import Archives, MachinesOnRay
from keras_matrix.runner.executors.ray.machines import Need, Offer, fitting, groups, identity_of, need_of, offers
from keras_matrix.runner.executors.registry import ExecutorEntry, ExecutorRequest, Executors
from keras_matrix.runner.matrix.reader import Cell

# A cluster that was just started has its head first.
WAIT_FOR_NODES_S = 20.0


class OnRay(Executors):
    """Cells are processes of the nodes of a cluster, started by `fork` or `fresh`."""

    def __init__(self, entry: ExecutorEntry, request: ExecutorRequest) -> None:
        """Take the address; the cluster is connected when it is first needed."""
        super().__init__(entry, request)
        self._address = request.options["address"] or os.environ.get("RAY_ADDRESS", "")
        self._connected: Cluster | None = request.service

    def software(self, cells: Sequence[Cell]) -> Mapping[str, str]:
        """Return the versions that the nodes have, several of one package joined. Raises `ExecutorError`."""
        versions_by_name: dict[str, set[str]] = {}
        for node in self._cluster().facts():
            for name, version in node.versions.items():
                versions_by_name.setdefault(name, set()).add(version)
        return {name: ", ".join(sorted(versions)) for name, versions in versions_by_name.items()}

    def end_leftovers(self, results: Path) -> None:
        """Do nothing here: an agent ends what an earlier one has left on its node."""

    def executor(self, run: Run, python: str | None) -> Executor:
        """Return an executor that measures nothing: `places` has those of the machines."""
        return Nowhere()

    def places(self, results: Path) -> Places:
        """Return the machines of the cluster for one session. Raises `ExecutorError`."""
        return PlacesOnRay(self._cluster(), results.resolve(), self.request.start)

    def _cluster(self) -> Cluster:
        if self._connected is None:
            self._connected = Cluster(self._address)
        return self._connected


make = OnRay


class PlacesOnRay:
    """The machines of a cluster, each of which measures one comparison at a time."""

    def __init__(self, cluster: Cluster, results: Path, start: str) -> None:
        cluster.begin()
        self._cluster, self._start = cluster, start
        self._mark = f"{platform.node()}:{results}"
        self._archives = Archives(results)
        self._places: list[MachinesOnRay] = []
        self._lock = threading.Lock()
        self._fitting: dict[Need, Fitting] = {}
        self._several: set[Need] = set()
        self._offers: list[Offer] = []
        self._changed = False
        begun_s = time.monotonic()
        self._look()
        while not self._offers:
            if time.monotonic() - begun_s > WAIT_FOR_NODES_S:
                raise ExecutorError(
                    "cluster: no node has a measuring slot; start each node with "
                    "ray start --resources='{\"measuring_slot\": 1}' (docs/cluster.md)"
                )
            time.sleep(1.0)
            self._look()

    def current(self) -> Sequence[Place]:
        """Return the machines; one whose agents were lost is there again if its nodes are alive."""
        self._look()
        with self._lock:
            return self._updated()

    def _updated(self) -> Sequence[Place]:
        living_places = {place.identity: place for place in self._places if place.lost() is None}
        offer_by_identity = {offer.identity: offer for offer in self._offers}
        for place in living_places.values():
            place.update(offer_by_identity)
        for offer_group in self._wanted(offer_by_identity.values()):
            if identity_of(offer_group) not in living_places:
                self._places.append(MachinesOnRay(self._cluster, offer_group, self._archives, self._mark, self._start))
        return self._places

    def _wanted(self, free_offers: Iterable[Offer]) -> list[tuple[Offer, ...]]:
        """Return the single machines, and the groups of several that comparisons have needed so far."""
        single_groups = [(offer,) for offer in free_offers]
        larger_groups = [
            offer_group for need in self._several for offer_group in groups(need, self._offers, self._known())
        ]
        return [*{identity_of(offer_group): offer_group for offer_group in (*single_groups, *larger_groups)}.values()]

    def _known(self) -> list[str]:
        """Return the identities of the groups that have been places, and were not lost."""
        return [place.identity for place in self._places if len(place.parts) > 1 and place.lost() is None]

    def changed(self) -> bool:
        """Return whether the machines are others than when this was last asked."""
        had_changed, self._changed = self._changed, False
        return had_changed

    def fitting(self, cells: Sequence[Cell]) -> Fitting:
        """Return where a comparison can run; comparisons with the same need have the same answer."""
        if reason := next(filter(None, (rules.undivided(cell.settings) for cell in cells)), None):
            return Fitting(frozenset(), reason, nowhere=True)
        need = need_of(cells)
        with self._lock:
            if need.nodes > 1:
                self._several.add(need)
            if need not in self._fitting:
                self._fitting[need] = fitting(need, self._offers, self._known())
            return self._fitting[need]

    def about(self) -> str:
        """Return the machines there are, and Ray's dashboard if it has one."""
        names_text = ", ".join(sorted(offer.name for offer in self._offers))
        url = self._cluster.dashboard()
        link_text = f"; Ray's dashboard: {url}" if url else ""
        return f"cluster: {len(self._offers)} machine{'s' * (len(self._offers) > 1)}: {names_text}{link_text}"

    def warnings(self) -> Mapping[str, str]:
        """Return what could disturb measurements on each node."""
        return {node.name: warning for offer in self._offers for node in offer.nodes for warning in node.warnings}

    def none_left(self, comparisons: int, why: str) -> str:
        """Return the message that no machine is left for so many comparisons."""
        reason_text = f" ({why})" if why else ""
        return (
            f"cluster: no node is left for {comparisons} comparisons{reason_text}; start the nodes again, then the "
            "same command, which continues this run"
        )

    def stop(self) -> None:
        """End all agents, and with them their cells."""
        self._cluster.stop()
        for place in self._places:
            place.release()

    def _look(self) -> None:
        current_offers = offers(self._cluster.facts(strict=not self._offers))
        with self._lock:
            if current_offers != self._offers:
                self._offers, self._changed = current_offers, True
                self._fitting.clear()


class Nowhere:
    """The executor of a run whose cells run at places."""

    name = "ray"

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return None."""
        return None

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Do nothing."""

    def await_block(self) -> None:
        """Do nothing."""

    def start(self, job: Job, timeout_s: float) -> Running:
        """Raise: nothing runs here."""
        raise AssertionError("cells of a cluster run at its places")

    def close(self) -> None:
        """Do nothing."""
