"""Selects the cells of a matrix that a container's service runs, and lists those that it leaves out. Pure.

A service has the backend and the device of its image. Entries without a device are measured on the service's device.
Left out, with the reason, are: an entry without the service's backend, another device, an external command without a
backend, and cells that need a file which the container does not have (`runner.machine.mounts`). Cells of other backends
belong to other services and are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from keras_matrix.records.backends import BACKENDS, TABLE, service_name
from keras_matrix.records.fc import spec
from keras_matrix.records.left_out import LeftOut, listed
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.overrides import Overrides, overridden
from keras_matrix.runner.matrix.reader import Cell, Matrix, expand_entries, makes_cells

Missing = Callable[[Cell], str | None]
"""Returns the file that a cell needs and the container lacks, as a reason; None if no file is missing."""
_Narrowed = tuple[Entry | None, list[str]]
_Reason = tuple[int | None, str, str]
"""Why cells are left out: the line of their entry, their workload, and the reason."""


def command_backends(entry: Entry) -> tuple[str, ...]:
    """Return the backends of an external command, whether or not its cells are compared over them."""
    if "backend" in entry.params:
        return tuple(map(str, entry.params["backend"]))
    return tuple(label for label in entry.backends if label in BACKENDS)


@dataclass(frozen=True, slots=True)
class Service:
    """The backends and the device of a service's image; empty or None: any."""

    backends: tuple[str, ...] = ()
    device: str | None = None

    def __str__(self) -> str:
        return " on ".join(filter(None, (" and ".join(self.backends), self.device)))

    def runs(self, settings: Settings) -> bool:
        """Return whether a cell has the service's backend and device."""
        return (not self.backends or settings.backend in self.backends) and self.device in (None, settings.device)

    def other(self, backends: Iterable[str], device: str | None = None) -> str:
        """Return the services for these backends, on another device if one is given."""
        known_backends = [backend for backend in backends if backend in TABLE] or TABLE
        names = [service_name(backend, device or self.device or "cpu") for backend in known_backends]
        return f"run the service {' or '.join(names)}"


def chosen(
    matrix: Matrix, service: Service, overrides: Overrides, missing: Missing
) -> tuple[list[Cell], list[LeftOut]]:
    """Return the selected cells of a matrix that a service runs, and those that it leaves out.

    Raises what `runner.matrix.reader.expand` raises, and `UsageError` if no cell is left.
    """
    selected_entries = overridden(
        [_on_device(entry, service) for entry in matrix.entries], replace(overrides, backends=())
    )
    runnable, reasons = _entries(selected_entries, service)
    is_merged = bool(overrides.assignments)
    cells = expand_entries(replace(matrix, entries=tuple(runnable)), merged=is_merged) if runnable else []
    reasons_by_cell = [(cell, missing(cell)) for cell in cells]
    reasons += [(cell.line, cell.settings.workload, text) for cell, text in reasons_by_cell if text is not None]
    in_order = sorted(dict.fromkeys(reasons), key=lambda reason: reason[0] or 0)
    places = (matrix.name if line is None else f"{matrix.name}:{line}" for line, _, _ in in_order)
    left_out = [LeftOut(place, *texts) for place, (_, *texts) in zip(places, in_order, strict=True)]
    able_cells = [cell for cell, text in reasons_by_cell if text is None]
    if not able_cells:
        head_text = f"{matrix.name}: this service ({service}) cannot run any of the selected cells:"
        raise UsageError("\n".join([head_text, *listed(left_out)]))
    return able_cells, left_out


def _on_device(entry: Entry, service: Service) -> Entry:
    """Return the entry on the service's device, unless it sets a device itself."""
    if service.device is None or entry.task is not None or entry.sets_device:
        return entry
    return replace(entry, axes=entry.axes | {"device": (service.device,)})


def _entries(entries: Iterable[Entry], service: Service) -> tuple[list[Entry], list[_Reason]]:
    """Return the entries reduced to what the service can run, and why it cannot run the rest."""
    runnable, left_out = [], []
    for entry in entries:
        narrowed, reasons = _narrowed(entry, service)
        if narrowed is not None and makes_cells(entry) and not makes_cells(narrowed):
            narrowed, reasons = (
                None,
                [*reasons, f"exclude leaves out every cell that this service ({service}) could run"],
            )
        if narrowed is not None:
            runnable.append(narrowed)
        left_out += [(entry.line, entry.workload.name, text) for text in reasons]
    return runnable, left_out


def _narrowed(entry: Entry, service: Service) -> _Narrowed:
    """Return an entry reduced to the backends and devices of the service, and why the rest is left out."""
    narrowed: Entry | None = entry
    reasons: list[str] = []
    for narrow in (_of_backends, _of_device, _of_network):
        if narrowed is not None:
            narrowed, more_reasons = narrow(narrowed, service)
            reasons += more_reasons
    return narrowed, reasons


def _of_backends(entry: Entry, service: Service) -> _Narrowed:
    if not service.backends:
        return entry, []
    named_backends = command_backends(entry) if entry.task else entry.backends
    own_backends = tuple(backend for backend in named_backends if backend in service.backends)
    if own_backends and entry.task and "backend" in entry.params:
        return replace(entry, params=entry.params | {"backend": own_backends}), []
    if own_backends:
        return replace(entry, backends=own_backends), []
    if named_backends:
        return None, [f"backends: it is for {', '.join(named_backends)}; {service.other(named_backends)}"]
    return None, [
        "backends: the command sets no backend; set backends: "
        f"[{', '.join(service.backends)}] to run it in this service"
    ]


def _of_device(entry: Entry, service: Service) -> _Narrowed:
    if service.device is None:
        return entry, []
    own_devices = tuple(device for device in entry.axes["device"] if device == service.device)
    other_devices = [str(device) for device in entry.axes["device"] if device != service.device]
    backends = service.backends or entry.backends
    if entry.task is None:
        texts = (f"device: {device} is not this service's ({service.device}); " for device in other_devices)
    else:
        count = entry.task.task.gpus
        uses_text = f"the command uses {count or 'no'} GPU{'s'[: count > 1]}"
        advice = "" if count else "set gpus: 1, or "
        texts = (f"gpus: {uses_text}, and this service is for {service.device}; {advice}" for _ in other_devices)
    reasons = [text + service.other(backends, device) for text, device in zip(texts, other_devices, strict=True)]
    return (replace(entry, axes=entry.axes | {"device": own_devices}) if own_devices else None), reasons


def _of_network(entry: Entry, service: Service) -> _Narrowed:
    """Leave out FC workers on networks of their own, which only workers on a CPU can have."""
    networks = entry.params.get("network", ()) if entry.workload.name == spec.WORKLOAD else ()
    if service.device in (None, "cpu") or all(network == spec.LOCAL for network in networks):
        return entry, []
    local_networks = tuple(network for network in networks if network == spec.LOCAL)
    networks_text = ", ".join(str(network) for network in networks if network != spec.LOCAL)
    reason = (
        f"network: {networks_text} is for workers on a CPU; {service.other(service.backends or entry.backends, 'cpu')}"
    )
    return (replace(entry, params=entry.params | {"network": local_networks}) if local_networks else None), [reason]
