"""From the origin of an operation, as XLA and TensorFlow report it, to its phase and its layer.

XLA's origin is a path of scopes, `jit(train_step)/transpose(jvp(dense_1))/dot_general`; TensorFlow's node also has a
path, `gradient_tape/functional_1/dense_1/MatMul`. Keras opens a scope named after the layer around each call, the FC
modes one named after the phase. A phase or layer that the path does not contain is None.

Events of a device's stream have names by CUPTI. XLA's and TensorFlow's collector names copies by direction, such as
MemcpyH2D (`AddMemcpyActivityEvent` in xla/backends/profiler/gpu/cupti_buffer_events.cc); Kineto writes
`Memcpy HtoD (Pageable -> Device)` (`memcpyName` in libkineto/src/CuptiActivity.cpp). NCCL's kernels are named
ncclDevKernel_AllReduce_..., before version 2.19 ncclKernel_AllReduce_..., those of AMD's library rccl.
"""

from __future__ import annotations

import re
from functools import cache

from keras_matrix.records.traces.neutral import Phase
from keras_matrix.records.traces.request import LAYER, PHASE, Names, scope_of

# The content of a transformation such as jvp(...) belongs to the path; that of a call, jit(name), does not.
_WRAPPED = re.compile(r"^(?:jvp|transpose|vmap|checkpoint|custom_jvp|custom_vjp|shard_map)\((.*)\)$")
_TAPE = "gradient_tape"
# Scopes of marks; if there are any, other scopes are ignored.
_LAYER, _PHASE = scope_of(LAYER), scope_of(PHASE)

_COPY = re.compile(r"^Memcpy ?(?:([HDAP])(?:to|2)([HDAP])\b|Peer|PtoP|P2P|Other)?")
TO_DEVICE = "copy host to device"
_PLACES = {"H": "host", "D": "device", "A": "device"}
_COLLECTIVE = re.compile(r"^(?:nccl|rccl)(?:Dev)?(?:Kernel|Func)?[A-Z_]")
# Events of CUPTI on a stream's line that are not work of the device: the lifetime of allocated memory
# (`CuptiTracerEventType` in cupti_buffer_events.h).
NOT_WORK = frozenset({"MemoryAlloc", "MemoryFree", "MemoryResidency", "HostRegister", "HostUnregister", "Overhead"})


class Scopes:
    """Finds phase and layer of paths of scopes, given the names of a cell's layers and optimiser."""

    def __init__(self, names: Names) -> None:
        self._layers = frozenset(names.layers)
        self._model, self._optimizer = names.model, names.optimizer
        self._phases = {str(phase): phase for phase in Phase} if names.phases else {}
        self.read = cache(self._read)

    def _read(self, origin: str) -> tuple[Phase | None, str | None]:
        """Return phase and layer of an operation with this origin."""
        parts = [_bare(part) for part in origin.split("/")]
        marked = [part.removeprefix(_LAYER) for part in parts if part.startswith(_LAYER)]
        layer = "/".join(marked or (part for part in parts if part in self._layers)) or None
        return self._phase(origin, parts, layer is not None or self._model in parts), layer

    def _phase(self, origin: str, parts: list[str], called: bool) -> Phase | None:
        if "transpose(" in origin or _TAPE in parts:
            return Phase.BACKWARD
        if marked := [part.removeprefix(_PHASE) for part in parts if part.startswith(_PHASE)]:
            return Phase(marked[-1])
        if self._optimizer is not None and self._optimizer in parts:
            return Phase.UPDATE
        named = next((self._phases[part] for part in reversed(parts) if part in self._phases), None)
        if named is not None:
            return named
        return Phase.FORWARD if "jvp(" in origin or called else None


def _bare(part: str) -> str:
    """Return a scope without the transformations around it."""
    while match := _WRAPPED.match(part):
        part = match[1]
    return part


def copy_of(name: str) -> str | None:
    """Return the operation of a copy, such as "copy host to device"; None if `name` is not that of a copy."""
    match = _COPY.match(name)
    if match is None:
        return None
    source, target = match.groups()
    if source is None or target is None or "P" in (source, target):
        return "copy between devices" if re.search("Peer|PtoP|P2P", name) else "copy"
    return f"copy {_PLACES[source]} to {_PLACES[target]}"


def is_collective(name: str) -> bool:
    """Return whether this is the name of an NCCL kernel."""
    return _COLLECTIVE.match(name) is not None
