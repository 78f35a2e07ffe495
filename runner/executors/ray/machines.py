"""The machines of a cluster and what they offer, and at which of them a comparison can run; without Ray.

A machine is one or more nodes, such as the containers of several backends: nodes that report the same `host_id` share
its cores, so that only one of them may measure at a time.

Folders travel between the runner's machine and a node as one compressed archive (`packed`, `unpacked`).
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.analysis.comparison.machines import equal
from keras_matrix.records.host import device_lists
from keras_matrix.records.schema import Machine
from keras_matrix.records.text import GIB, bytes_text
from keras_matrix.records.trees import walk
from keras_matrix.runner.executors.places import Fitting, gpus_needed_by
from keras_matrix.runner.matrix.entry import PlacementKeys
from keras_matrix.runner.matrix.reader import Cell

# Between the identities of machines that make up one place, as in `Record.place`.
JOIN = "+"
# Archives of a user's modules: what is larger belongs into a data set.
MOST_BYTES = 64 << 20
# Of the files of one cell.
MOST_FILES_BYTES = 1 << 30
LEFT_OUT = frozenset({".git", ".venv", "venv", "__pycache__", "node_modules", "results", ".mypy_cache", ".ruff_cache"})


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
        backend_and_device = f"{backend} {device}"
        return next((node for node in self.nodes if node.missing.get(backend_and_device, "") is None), None)


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
        placement, names = self.placement, [node.name for node in offer.nodes]
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
        machine, model = node.machine, self.placement.gpus.model
        if self.cpus > machine.logical_cpus:
            return f"{self.cpus} CPUs"
        fitting_gpus = [name for name in machine.gpus if device_lists.is_model(model, name)] if model else machine.gpus
        if model and not fitting_gpus:
            return f"gpu_model: {model}"
        if device == "gpu" and self.gpus > len(fitting_gpus):
            return f"{self.gpus} GPUs{f' with gpu_model: {model}' if model else ''}"
        memory = self.placement.memory_gib
        if memory and (machine.memory_bytes is None or machine.memory_bytes < memory * GIB):
            return f"memory_gib: {memory:g}"
        return None


def offers(facts: Iterable[NodeFacts]) -> list[Offer]:
    """Return the machines of the nodes that offer a measuring slot."""
    nodes_by_host: dict[str, list[NodeFacts]] = {}
    for node in sorted(facts, key=lambda node: node.node_id):
        if node.slot:
            nodes_by_host.setdefault(node.machine.host_id, []).append(node)
    return [Offer(identity, tuple(nodes)) for identity, nodes in nodes_by_host.items()]


def need_of(cells: Sequence[Cell]) -> Need:
    """Return what the cells of a comparison need; an external command needs no backend."""
    pairs = frozenset([(cell.settings.backend, cell.settings.device) for cell in cells if cell.task is None])
    gpu_count, cpu_count = max(map(gpus_needed_by, cells), default=0), max(_cpus(cell.settings.cpus) for cell in cells)
    return Need(pairs, cpu_count, gpu_count, cells[0].placement, max(cell.settings.nodes for cell in cells))


def groups(need: Need, machines: Sequence[Offer], earlier_identities: Iterable[str] = ()) -> list[tuple[Offer, ...]]:
    """Return the machines that fit, in groups of as many as are needed: equal ones, each in one group at most.

    With `across_nodes` all groups are equal. Groups whose identities are `earlier_identities` stay together, the others
    are formed in the order of their machines' identities.
    """
    kinds: list[list[Offer]] = []
    for offer in sorted(machines, key=lambda offer: offer.identity):
        if need.problem(offer) is None:
            kind = next((kind for kind in kinds if equal(kind[0].machine, offer.machine)), None)
            kinds.append([offer]) if kind is None else kind.append(offer)
    if need.placement.across_nodes:
        kinds = sorted(kinds, key=len, reverse=True)[:1]
    return [group for kind in kinds for group in _grouped(kind, need.nodes, earlier_identities)]


def _grouped(kind: Sequence[Offer], group_size: int, earlier_identities: Iterable[str]) -> list[tuple[Offer, ...]]:
    """Return equal machines in groups of a size, first those that are known."""
    offer_by_identity = {offer.identity: offer for offer in kind}
    identity_lists = [identity.split(JOIN) for identity in earlier_identities]
    known_groups = [
        tuple(offer_by_identity.pop(identity) for identity in identities)
        for identities in identity_lists
        if _is_there(identities, group_size, offer_by_identity)
    ]
    free_offers = [*offer_by_identity.values()]
    return known_groups + [
        tuple(free_offers[end - group_size : end]) for end in range(group_size, len(free_offers) + 1, group_size)
    ]


def _is_there(identities: Sequence[str], group_size: int, offer_by_identity: Mapping[str, Offer]) -> bool:
    return len(identities) == group_size and all(identity in offer_by_identity for identity in identities)


def identity_of(offers: Sequence[Offer]) -> str:
    """Return the identity of several machines together."""
    return JOIN.join(offer.identity for offer in offers)


def fitting(need: Need, machines: Sequence[Offer], earlier_identities: Iterable[str] = ()) -> Fitting:
    """Return the machines that fit, or groups of them; if there is none, the reason names what each machine lacks."""
    if fitting_groups := groups(need, machines, earlier_identities):
        return Fitting(frozenset(map(identity_of, fitting_groups)))
    names_text = ", ".join(sorted(offer.name for offer in machines)[:8])
    lacks = [need.problem(offer) for offer in machines]
    if None in lacks:
        available_text = f"{lacks.count(None)} of the cluster's fit, equal or not; the cluster has {names_text}"
        return Fitting(frozenset(), f"nodes: {need.nodes}: needs {need.nodes} equal machines; {available_text}")
    lacking_text = " and ".join(dict.fromkeys(filter(None, lacks)))
    if not lacking_text:
        return Fitting(frozenset(), "no node: the cluster has no node with a measuring slot")
    return Fitting(frozenset(), f"no node offers {lacking_text}; the cluster has {names_text}")


def _cpus(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return max(device_lists.parse_cpus(value) or (0,)) + 1 if value != "all" else 1


class TooLarge(Exception):
    """A folder has more bytes than may travel; the text names it."""


def packed(folder: Path, names: Iterable[Path] | None = None) -> bytes:
    """Return the regular files and folders below a folder, or those of them that are named, as an archive.

    Pipes, sockets and links are left out. Raises `TooLarge` and OSError.
    """
    buffer = io.BytesIO()
    paths = sorted(walk(folder)) if names is None else list(names)
    total = sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink())
    if total > MOST_FILES_BYTES:
        raise TooLarge(f"{folder}: has {bytes_text(total)}, more than {bytes_text(MOST_FILES_BYTES)}")
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in paths:
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                continue
            archive.add(path, str(path.relative_to(folder)), recursive=False)
    return buffer.getvalue()


def unpacked(archive: bytes, folder: Path) -> None:
    """Write an archive's files into a folder. Raises OSError, and `tarfile.TarError` for a damaged archive."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            if hasattr(tarfile, "data_filter"):
                opened.extractall(folder, filter="data")
            else:  # before Python 3.11.4, such as Debian 12's
                opened.extractall(folder, [_harmless(member) for member in opened])  # noqa: S202 - only harmless ones
    except (EOFError, zlib.error) as error:
        raise tarfile.ReadError(f"damaged: {error}") from error


def _harmless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a regular file or folder that stays within the archive's folder. Raises `tarfile.TarError` for others."""
    path = Path(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name}: is no file or folder of the archive's own folder")
    member.mode &= 0o755  # neither set-user-ID nor writable by others
    return member


def modules(root: Path, but: Path | None = None) -> bytes:
    """Return the files of a user's folder of modules, without hidden files, environments, caches and `but`.

    Raises `TooLarge` and OSError.
    """

    def enters(folder: Path) -> bool:
        return folder.name not in LEFT_OUT and not folder.name.startswith(".") and folder.resolve() != but

    names, total = [], 0
    for path in walk(root, enters):
        if not path.name.startswith(".") and path.is_file() and not path.is_symlink():
            total += path.stat().st_size
            names.append(path)
        if total > MOST_BYTES:
            raise TooLarge(
                f"{root}: has more than {bytes_text(MOST_BYTES)}, which are too many to copy to a node; put modules "
                "into a folder of their own, or install them on the nodes"
            )
    return packed(root, names)
