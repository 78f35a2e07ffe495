"""Whether compared cells did the same work: by the facts of their records, their losses, and their use of TF32.

Other weights, optimiser, FLOPs or settings prevent a comparison; losses further apart than seeds explain, and TF32 in
league `as_shipped`, are caveats. A cell whose steps may have used part of their batches is compared with none.

Guarantee: pure; facts that were not measured are not compared. Limit: a wrong step that does not change the loss in the
few epochs of a cell is not detected; `runner parity` compares gradients and updates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from keras_matrix.analysis.comparison import machines
from keras_matrix.records.backends import TABLE as BACKEND_TABLE
from keras_matrix.records.schema import MEASURED, Record, Resolved
from keras_matrix.records.text import percentage

LOSS_TOLERANCE = 0.25
ADVICE = "check optimiser and initial weights; runner parity locates the difference between two backends"
FLOPS_TOLERANCE = 0.005
RATE_TOLERANCE = 1e-6  # schedules are computed in float32 by some backends
UNPROVEN = "it is not proven that a step used all samples of its batch"
NO_JIT, JIT_ADVICE = "no jit", "compare with jit: true, or all of them with eager: true (docs/matrix.md)"
OTHER_KERAS = "Keras differs"
OTHER_CODE = (
    "other code of fit, layers and optimizers, and other defaults: a ratio is that of the program as it runs on each "
    "(docs/comparing.md)"
)
COMPILED, GRAPH, ONE_BY_ONE = "runs a compiled step", "runs a graph of operations", "runs its operations one by one"
STEPS, HOSTS = "steps per epoch", "hosts"
OF_A_MACHINE = frozenset({HOSTS, "CPUs", "devices", "threads of an operation"})
Cells = Mapping[str, Sequence[Record]]
"""The measured records of each compared cell, by the name shown for it."""
# Facts that older records and some processes lack: compared among the records that have them.
OPTIONAL_FACTS: dict[str, Callable[[Record], object]] = {
    "trainable parameters": lambda record: record.resolved and record.resolved.trainable_parameters,
    "optimisers": lambda record: record.resolved and record.resolved.optimizer,
    "optimiser slots": lambda record: record.resolved and record.resolved.optimizer_slots,
    "bytes of optimiser slots": lambda record: record.resolved and record.resolved.optimizer_slot_bytes,
    "types of stored weights": lambda record: record.resolved and (", ".join(record.resolved.weight_dtypes) or None),
    "samples": lambda record: record.resolved and record.resolved.samples,
    "steps per execution": lambda record: record.resolved and record.resolved.steps_per_execution,
    "methods of the model's own": lambda record: record.work and (", ".join(record.work.own_methods) or "none"),
    "weights that training changed": lambda record: record.work and record.work.changed_variables,
    "updates per step": lambda record: record.work and record.work.updates_per_step,
}
# A setting that one cell has and another lacks differs.
FACTS: dict[str, Callable[[Record], object]] = {
    "parameters": lambda record: record.resolved and record.resolved.parameters,
    "precisions": lambda record: record.resolved and record.resolved.precision,
    "CPUs": lambda record: record.resolved and record.resolved.cpus,
    "kinds of data": lambda record: record.resolved and record.resolved.data_is_real,
    STEPS: lambda record: record.resolved and record.resolved.steps_per_epoch,
    "devices": lambda record: record.device and record.device.platform,
    HOSTS: lambda record: record.machine.host_id,
}
MATCHED_FACTS: dict[str, Callable[[Record], object]] = {
    "compile modes": lambda record: record.resolved and record.resolved.jit_compile,
    "image data formats": lambda record: record.resolved and record.resolved.image_data_format,
}
# As above, within that league: JAX does not report its threads, TensorFlow only explicitly set ones.
MATCHED_OPTIONAL_FACTS: dict[str, Callable[[Record], object]] = {
    "threads of an operation": lambda record: record.resolved and record.resolved.intra_op_threads
}
FIGURES: dict[str, tuple[Callable[[Record], Any], float]] = {
    "learning rates": (lambda record: record.resolved and record.resolved.learning_rate, RATE_TOLERANCE)
}
# Under two labels of one backend, more FLOPs are not different work: the comparison is made to find them.
FIGURES_BETWEEN_BACKENDS: dict[str, tuple[Callable[[Record], Any], float]] = {
    "FLOPs per batch": (lambda record: record.resolved and record.resolved.forward_flops, FLOPS_TOLERANCE)
}
Users = tuple[tuple[str, ...], tuple[str, ...]]
"""The cells that use TF32 in an operation, and those that do not."""


def differing(cells: Cells, apart: bool = False, spread_out: bool = False, varied: Collection[str] = ()) -> str | None:
    """Return the difference in work between these cells, None if their records show no difference.

    `apart`: they are of two sessions, each of which finds by itself the number of steps of an "auto" epoch.
    `spread_out`: their blocks are at several machines, so that one that failed is missing at one of them. `varied` are
    names of facts in which they differ because what is compared does: their settings, or `OF_A_MACHINE`.
    """
    cells = {name: records for name, records in cells.items() if records}
    if unproven := sorted(name for name, records in cells.items() if any(map(_unproven, records))):
        return f"{UNPROVEN} ({', '.join(unproven)}; see the warning work_not_counted)"
    all_records = [record for records in cells.values() for record in records]
    is_matched = bool(all_records) and all(record.settings.league == "matched" for record in all_records)
    is_found_anew = apart and all(record.settings.steps_per_epoch == "auto" for record in all_records)
    optional = OPTIONAL_FACTS | MATCHED_OPTIONAL_FACTS if is_matched else OPTIONAL_FACTS
    for name, fact in (FACTS | optional | (MATCHED_FACTS if is_matched else {})).items():
        if name in varied or (is_found_anew and name == STEPS) or (spread_out and name == HOSTS):
            continue
        values_by_cell = {cell_name: _values(fact, records, name in optional) for cell_name, records in cells.items()}
        texts = {cell_name: "/".join(map(_word, values)) for cell_name, values in values_by_cell.items() if values}
        if len(set(texts.values())) > 1:
            return _difference(name, texts)
    if is_matched and (reason := difference(cells)):
        return f"TF32 differs: {reason}; {STILL_ON}"
    has_several_backends = len({record.settings.backend for record in all_records}) > 1
    for name, (figure, tolerance) in (FIGURES | FIGURES_BETWEEN_BACKENDS if has_several_backends else FIGURES).items():
        value_by_cell = {
            cell_name: value for cell_name, records in cells.items() for value in _values(figure, records, True)
        }
        if value_by_cell and max(value_by_cell.values()) - min(value_by_cell.values()) > tolerance * max(
            value_by_cell.values()
        ):
            return _difference(name, {cell_name: _word(value) for cell_name, value in value_by_cell.items()})
    return None


def mixed(records: Sequence[Record], *, equal_machines: bool = False) -> str | None:
    """Return a difference in versions or machines between the records of one cell; None if they agree.

    With `equal_machines` they may be of several machines with equal hardware and system.
    """
    for name in ("keras", *sorted({record.settings.backend for record in records})):
        versions = sorted({record.versions[name] for record in records if name in record.versions})
        if len(versions) > 1:
            return f"{name} versions differ ({', '.join(versions)})"
    count = len(machines.hosts(records))
    difference_text = machines.difference(records) if equal_machines else f"machines differ ({count} hosts)"
    return difference_text if count > 1 else None


def work_caveats(cells: Cells) -> tuple[str, ...]:
    """Return the caveats of comparing these cells: different default precisions, Keras 2 beside 3, or losses."""
    all_records = [record for records in cells.values() for record in records]
    is_matched = bool(all_records) and all(record.settings.league == "matched" for record in all_records)
    precision = None if is_matched else difference(cells)
    lines = (
        precision and f"TF32: {precision}; {EQUALISE}",
        other_keras(cells),
        without_jit(cells),
        losses_apart(cells),
    )
    return tuple(line for line in lines if line)


def other_keras(cells: Cells) -> str | None:
    """Return the caveat that some cells ran Keras 2 and others Keras 3, whose code is another; None if it is one."""
    versions = {
        name: " and ".join(sorted({record.versions["keras"] for record in records if "keras" in record.versions}))
        for name, records in cells.items()
    }
    if len({version.partition(".")[0] for version in versions.values() if version}) < 2:
        return None
    texts = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"{OTHER_KERAS}: {texts}: {OTHER_CODE}"


def without_jit(cells: Cells) -> str | None:
    """Return the caveat that without jit, as asked for, some cells run their operations one by one, and others do not.

    None if no cell was asked to leave jit out: what a backend does by default is printed beside its figure.
    """
    ways = {name: way for name, records in cells.items() if (way := _way_of_running(records))}
    if len(set(ways.values())) < 2 or not any(map(_jit_left_out, cells.values())):
        return None
    texts = [f"{', '.join(name for name in ways if ways[name] == way)} {way}" for way in dict.fromkeys(ways.values())]
    return f"{NO_JIT}: {'; '.join(texts)}: {JIT_ADVICE}"


def _jit_left_out(records: Sequence[Record]) -> bool:
    return any(
        record.settings.jit is False or (record.resolved and "jit_compile=False" in record.resolved.own_compile_options)
        for record in records
    )


def _way_of_running(records: Sequence[Record]) -> str | None:
    """Return how these processes ran a step; None if a record does not say so."""
    resolved_parts = [record.resolved for record in records if record.resolved]
    if not resolved_parts or any(resolved.jit_compile is None for resolved in resolved_parts):
        return None
    if any(resolved.jit_compile for resolved in resolved_parts):
        return COMPILED
    backend = BACKEND_TABLE.get(records[0].settings.backend)
    is_graph = (
        backend is not None and backend.graph_without_jit and not any(resolved.eager for resolved in resolved_parts)
    )
    return GRAPH if is_graph else ONE_BY_ONE


def losses_apart(cells: Cells, advice: str = ADVICE) -> str | None:
    """Return the caveat that these cells' losses differ, with advice; None if they do not or were not measured.

    The backends draw their initial weights from different generators, so that equal work does not give equal losses.
    Two cells' losses differ only if in some epoch they are further apart than `LOSS_TOLERANCE` of the initial loss:
    twice the effect observed from seeds alone (docs/lab/parity.md).
    """
    paths = {name: path for name, records in cells.items() if (path := loss_path(records))}
    steps_before = {name: _steps_before(cells[name]) for name in paths}
    for cell_name, other_name in combinations(paths, 2):
        if steps_before[cell_name] and steps_before[other_name] and steps_before[cell_name] != steps_before[other_name]:
            continue
        initial = min(abs(paths[cell_name][0]), abs(paths[other_name][0]))
        for epoch, (a, b) in enumerate(zip(paths[cell_name], paths[other_name], strict=False), start=1):
            if initial and abs(a - b) > LOSS_TOLERANCE * initial:
                return (
                    f"losses differ: in epoch {epoch} {cell_name} is at {a:.3g} and {other_name} at {b:.3g}, further "
                    f"apart than {percentage(LOSS_TOLERANCE)} of their first ({paths[cell_name][0]:.3g} and "
                    f"{paths[other_name][0]:.3g}): {advice}"
                )
    return None


def loss_path(records: Sequence[Record]) -> list[float]:
    """Return a cell's loss in each epoch, the median over its processes.

    A process that calibrated the number of steps had trained before its first epoch: it counts only if all did.
    """
    losses = [record.learning.loss for record in _for_losses(records) if record.learning.loss]
    epoch_losses = zip(*losses, strict=False)
    return [
        statistics.median(known_losses)
        for epoch in epoch_losses
        if (known_losses := [loss for loss in epoch if loss is not None])
    ]


def _for_losses(records: Sequence[Record]) -> Sequence[Record]:
    measured_records = [record for record in records if record.status in MEASURED]
    return [record for record in measured_records if record.times.calibration_time_s is None] or measured_records


def _steps_before(records: Sequence[Record]) -> set[int]:
    """Return how many steps had trained the model before its first epoch, in the processes whose losses count.

    The calibration takes them, more on a fast backend; losses are not compared after different numbers of steps. The
    set is empty for records of older versions, which have no `work`.
    """
    stretches_by_record = [record.work.stretches for record in _for_losses(records) if record.work]
    return {
        sum(stretch.steps * stretch.epochs for stretch in stretches if stretch.name == "calibration")
        for stretches in stretches_by_record
    }


def _unproven(record: Record) -> bool:
    """Return whether a step may have used fewer samples than its batch has: then samples/s is not stated either.

    Records before `work` have their figures as they were stated. Of a program's own step it is enough that it changed
    weights: what a step of it is does not depend on a batch of ours.
    """
    if record.work is None or record.status not in MEASURED or record.times.samples_per_s is not None:
        return False
    return not (record.settings.script and record.work.changed_variables)


def _values(fact: Callable[[Record], object], records: Sequence[Record], known_only: bool) -> list[Any]:
    """Return the distinct values of a fact, with `known_only` only those that are not None."""
    return sorted({value for record in records if (value := fact(record)) is not None or not known_only}, key=str)


def _difference(name: str, values: Mapping[str, str]) -> str:
    return f"{name} differ: " + ", ".join(f"{cell_name} {value}" for cell_name, value in sorted(values.items()))


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


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
    """Return in which operations some cells use TF32 and others do not, None if there is no such operation.

    TensorFlow and JAX use TF32 on a GPU of compute capability 8.0 or newer by default, PyTorch only in convolutions and
    recurrent layers. In league `as_shipped`, which keeps these defaults, a difference is a caveat of the comparison; in
    `matched`, which turns TF32 off everywhere, it prevents the comparison. Operations that no cell's layers compute,
    and precisions other than float32, are not considered. Records without probes have one value for all operations,
    PyTorch's for matrix products only: for these records only products are compared.
    """
    groups: dict[Users, list[str]] = {}
    for name, (label, used_tf32) in OPERATIONS.items():
        users, others = _users(cells, name, used_tf32)
        if users and others:
            groups.setdefault((users, others), []).append(label)
    texts = []
    for (users, others), labels in groups.items():
        use_word, do_word = ("uses" if len(users) == 1 else "use"), ("does" if len(others) == 1 else "do")
        texts.append(f"{_listed(users)} {use_word} it in {_listed(labels)}, {_listed(others)} {do_word} not")
    return "; ".join(texts) or None


def of_step(resolved: Resolved) -> bool | None:
    """Return whether the float32 operations of a step may use TF32; if its layers are unknown, its matrix products.

    Older records have no probes; for them the one value for all operations is returned.
    """
    operations = resolved.operations or ("matmul",)
    uses = [used_tf32(resolved) for name, (_, used_tf32) in OPERATIONS.items() if name in operations]
    known_uses = [value for value in uses if value is not None]
    return any(known_uses) if known_uses else resolved.tf32


def _users(cells: Cells, name: str, used_tf32: Callable[[Resolved], bool | None]) -> Users:
    """Return the cells that use TF32 in this operation and those that do not; a cell can be in both."""
    values = {
        cell_name: {used_tf32(resolved) for resolved in _concerned(records, name)}
        for cell_name, records in cells.items()
    }
    users, others = (
        [cell_name for cell_name, answers in values.items() if value in answers] for value in (True, False)
    )
    return tuple(users), tuple(others)


def _concerned(records: Sequence[Record], name: str) -> list[Resolved]:
    """Return the float32 records' facts whose layers compute this operation or are unknown."""
    resolved_parts = [record.resolved for record in records if record.resolved is not None]
    return [
        resolved
        for resolved in resolved_parts
        if resolved.precision == "float32" and (not resolved.operations or name in resolved.operations)
    ]


def _listed(names: Sequence[str]) -> str:
    """Return names as text: `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
