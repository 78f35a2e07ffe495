"""Which float32 operations of compared cells use TF32, and the message if they differ.

TensorFlow and JAX use TF32 on a GPU of compute capability 8.0 or newer by default, PyTorch only in convolutions and
recurrent layers. In league `as_shipped`, which keeps these defaults, a difference is a caveat of the comparison; in
`matched`, which turns TF32 off everywhere, it prevents the comparison.

Guarantee: pure. Operations that no cell's layers compute, and precisions other than float32, are not considered.
Records without probes have one value for all operations, PyTorch's for matrix products only: for these records only
products are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from keras_matrix.records.schema import Record, Resolved

Cells = Mapping[str, Sequence[Record]]
Users = tuple[tuple[str, ...], tuple[str, ...]]
"""The cells that use TF32 in an operation, and those that do not."""


def _in_products(resolved: Resolved) -> bool | None:
    probed = (resolved.tf32_matmul, resolved.tf32_convolution, resolved.tf32_rnn)
    return resolved.tf32 if all(value is None for value in probed) else resolved.tf32_matmul


OPERATIONS: dict[str, tuple[str, Callable[[Resolved], bool | None]]] = {
    "matmul": ("matrix products", _in_products),
    "convolution": ("convolutions", lambda resolved: resolved.tf32_convolution),
    "rnn": ("recurrent layers", lambda resolved: resolved.tf32_rnn),
}
EQUALISE = "set league: matched to compare all of them in float32"
STILL_ON = (
    "league matched turns TF32 off: remove what turns it on again, in the workload's code (such as "
    "torch.set_float32_matmul_precision) or in the environment (NVIDIA_TF32_OVERRIDE, "
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), or set league: as_shipped"
)


def difference(cells: Cells) -> str | None:
    """Return in which operations some cells use TF32 and others do not, None if there is no such operation."""
    groups: dict[Users, list[str]] = {}
    for name, (label, used) in OPERATIONS.items():
        users, others = _users(cells, name, used)
        if users and others:
            groups.setdefault((users, others), []).append(label)
    texts = []
    for (users, others), labels in groups.items():
        use, do = ("uses" if len(users) == 1 else "use"), ("does" if len(others) == 1 else "do")
        texts.append(f"{_listed(users)} {use} it in {_listed(labels)}, {_listed(others)} {do} not")
    return "; ".join(texts) or None


def of_step(resolved: Resolved) -> bool | None:
    """Return whether the float32 operations of a step may use TF32; if its layers are unknown, its matrix products.

    Older records have no probes; for them the one value for all operations is returned.
    """
    operations = resolved.operations or ("matmul",)
    known = [used(resolved) for name, (_, used) in OPERATIONS.items() if name in operations]
    found = [value for value in known if value is not None]
    return any(found) if found else resolved.tf32


def _users(cells: Cells, name: str, used: Callable[[Resolved], bool | None]) -> Users:
    """Return the cells that use TF32 in this operation and those that do not; a cell can be in both."""
    values = {cell: {used(one) for one in _concerned(records, name)} for cell, records in cells.items()}
    users, others = ([cell for cell, found in values.items() if value in found] for value in (True, False))
    return tuple(users), tuple(others)


def _concerned(records: Sequence[Record], name: str) -> list[Resolved]:
    """Return the float32 records' facts whose layers compute this operation or are unknown."""
    found = [record.resolved for record in records if record.resolved is not None]
    return [one for one in found if one.precision == "float32" and (not one.operations or name in one.operations)]


def _listed(names: Sequence[str]) -> str:
    """Return names as text: `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
