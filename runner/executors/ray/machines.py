"""The machines of a cluster and what they offer, and at which of them a comparison can run. Pure, without Ray.

A machine is one or more nodes, such as the containers of several backends: nodes that report the same `host_id` share
its cores, so that only one of them may measure at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.comparison.machines import equal
from keras_matrix.records.host import cpu_list, gpu_list
from keras_matrix.records.schema import Machine
from keras_matrix.records.text import GIB
from keras_matrix.runner.executors.places import Fitting, gpus_needed_by
from keras_matrix.runner.matrix.entry import PlacementKeys
from keras_matrix.runner.matrix.reader import Cell

# Between the identities of machines that make up one place, as in `Record.place`.
JOIN = "+"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node reports of itself.

    `name` is its host name or its label `machine`; `missing` says why a backend cannot run on a device ("jax cpu")
    there, None if it can; `program` is the version of this program; `labels` are those of `ray start`; `slot` is
    whether it offers a measuring slot; `warnings` are what could disturb measurements; `address` is where other nodes
    reach it.
    """

    node_id: str
    name: str
    machine: Machine
    versions: Mapping[str, str]
    missing: Mapping[str, str | None]
    program: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    slot: bool = True
    warnings: tuple[str, ...] = ()
    address: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine: its nodes, in the order of their ids."""

    identity: str
    nodes: tuple[NodeFacts, ...]

    @property
    def name(self) -> str:
        """The machine's name for people."""
        return self.nodes[0].name

    @property
    def machine(self) -> Machine:
        """The machine as its first node sees it."""
        return self.nodes[0].machine

    def node_for(self, backend: str, device: str) -> NodeFacts | None:
        """Return the node that can run a backend on a device; None if there is none."""
        wanted = f"{backend} {device}"
        return next((node for node in self.nodes if node.missing.get(wanted, "") is None), None)


@dataclass(frozen=True, slots=True)
class Need:
    """What the cells of a comparison need of each of `nodes` machines: `pairs` are backends with their devices."""

    pairs: frozenset[tuple[str, str]]
    cpus: int = 1
    gpus: int = 0
    placement: PlacementKeys = field(default_factory=PlacementKeys)
    nodes: int = 1

    def problem(self, offer: Offer) -> str | None:
        """Return what a machine lacks; None if it fits."""
        placement, names = self.placement, [one.name for one in offer.nodes]
        if placement.machine and placement.machine not in (offer.machine.machine_type, *names):
            return f"machine: {placement.machine}"
        if not self.pairs:  # external commands
            lacks = [self._lack(node) for node in offer.nodes]
            return None if None in lacks else lacks[0]
        for backend, device in sorted(self.pairs):
            node = offer.node_for(backend, device)
            if node is None:
                return f"backend {backend} on device {device}" if device != "cpu" else f"backend {backend}"
            if lack := self._lack(node, device):
                return lack
        return None

    def _lack(self, node: NodeFacts, device: str = "gpu") -> str | None:
        """Return what a node lacks for cells of a device."""
        machine, wanted = node.machine, self.placement.gpus.model
        if self.cpus > machine.logical_cpus:
            return f"{self.cpus} CPUs"
        fitting = [name for name in machine.gpus if gpu_list.is_model(wanted, name)] if wanted else machine.gpus
        if wanted and not fitting:
            return f"gpu_model: {wanted}"
        if device == "gpu" and self.gpus > len(fitting):
            return f"{self.gpus} GPUs{f' with gpu_model: {wanted}' if wanted else ''}"
        memory = self.placement.memory_gib
        if memory and (machine.memory_bytes is None or machine.memory_bytes < memory * GIB):
            return f"memory_gib: {memory:g}"
        return None


def offers(facts: Iterable[NodeFacts]) -> list[Offer]:
    """Return the machines of the nodes that offer a measuring slot."""
    found: dict[str, list[NodeFacts]] = {}
    for one in sorted(facts, key=lambda node: node.node_id):
        if one.slot:
            found.setdefault(one.machine.host_id, []).append(one)
    return [Offer(identity, tuple(nodes)) for identity, nodes in found.items()]


def need_of(cells: Sequence[Cell]) -> Need:
    """Return what the cells of a comparison need; an external command needs no backend."""
    pairs = frozenset([(cell.settings.backend, cell.settings.device) for cell in cells if cell.task is None])
    gpus, cpus = max(map(gpus_needed_by, cells), default=0), max(_cpus(cell.settings.cpus) for cell in cells)
    return Need(pairs, cpus, gpus, cells[0].placement, max(cell.settings.nodes for cell in cells))


def groups(need: Need, machines: Sequence[Offer], known: Iterable[str] = ()) -> list[tuple[Offer, ...]]:
    """Return the machines that fit, in groups of as many as are needed: equal ones, each in one group at most.

    With `across_nodes` all groups are equal. Groups whose identities are `known` stay together, the others are formed
    in the order of their machines' identities.
    """
    kinds: list[list[Offer]] = []
    for offer in sorted(machines, key=lambda one: one.identity):
        if need.problem(offer) is None:
            kind = next((one for one in kinds if equal(one[0].machine, offer.machine)), None)
            kinds.append([offer]) if kind is None else kind.append(offer)
    if need.placement.across_nodes:
        kinds = sorted(kinds, key=len, reverse=True)[:1]
    return [group for kind in kinds for group in _grouped(kind, need.nodes, known)]


def _grouped(kind: Sequence[Offer], size: int, known: Iterable[str]) -> list[tuple[Offer, ...]]:
    """Return equal machines in groups of a size, first those that are known."""
    by_identity = {offer.identity: offer for offer in kind}
    parts = [identity.split(JOIN) for identity in known]
    found = [tuple(by_identity.pop(one) for one in own) for own in parts if _is_there(own, size, by_identity)]
    left = [*by_identity.values()]
    return found + [tuple(left[end - size : end]) for end in range(size, len(left) + 1, size)]


def _is_there(parts: Sequence[str], size: int, there: Mapping[str, Offer]) -> bool:
    return len(parts) == size and all(one in there for one in parts)


def identity_of(offers: Sequence[Offer]) -> str:
    """Return the identity of several machines together."""
    return JOIN.join(offer.identity for offer in offers)


def fitting(need: Need, machines: Sequence[Offer], known: Iterable[str] = ()) -> Fitting:
    """Return the machines that fit, or groups of them; if there is none, the reason names what each machine lacks."""
    if found := groups(need, machines, known):
        return Fitting(frozenset(map(identity_of, found)))
    names = ", ".join(sorted(offer.name for offer in machines)[:8])
    lacks = [need.problem(offer) for offer in machines]
    if None in lacks:
        there = f"{lacks.count(None)} of the cluster's fit, equal or not; the cluster has {names}"
        return Fitting(frozenset(), f"nodes: {need.nodes}: needs {need.nodes} equal machines; {there}")
    wanted = " and ".join(dict.fromkeys(filter(None, lacks)))
    if not wanted:
        return Fitting(frozenset(), "no node: the cluster has no node with a measuring slot")
    return Fitting(frozenset(), f"no node offers {wanted}; the cluster has {names}")


def _cpus(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return max(cpu_list.parse(value) or (0,)) + 1 if value != "all" else 1
