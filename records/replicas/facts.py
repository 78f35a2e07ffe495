"""The record's part on the devices of a Keras workload: what each of them held and did, as read from its arrays."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.codec import about
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.settings import DATA

# What `semantics` says if batches are not resident on several devices, though they would be on one.
FED_FROM_HOST = (
    "batches are in host memory: the strategy's iterator copies each replica's rows to its device ahead of their step"
)


@dataclass(frozen=True, slots=True)
class Replica:
    """One device's part of the training."""

    device: str = about("the backend's name of the device, as read from its arrays")
    rows: int = about("samples of a batch that the device receives")
    updates: int | None = about("updates that its copy of the optimizer counted, all epochs", default=None)
    samples: int | None = about("samples of its loss in the last epoch", default=None)
    process: int | None = about("its process, if each device has one of its own", default=None)
    peak_host_memory_bytes: int | None = about("peak resident memory of that process", default=None)
    peak_device_memory_bytes: int | None = about("peak of the allocator on the device; null on a CPU", default=None)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The devices of a cell, and how the work was divided among them."""

    method: str = about("what divided the work, as its library names it")
    is_fit: bool = about("whether Keras's own fit computed the step; false for a step of this project")
    replicas: list[Replica] = about("each device")
    divided_weights: int = about("variables of the model of which each device has a part")
    copied_weights: int = about("variables of the model of which each device has a copy")
    gradient_bytes: int = about("size of all gradients, which data parallelism sums in each step; 0 if it sums none")
    semantics: list[str] = about("what differs in meaning from one device, such as statistics per replica")
    communication: Communication | None = about("time of the collectives, in separate epochs", default=None)


def problem_of(replicas: Replicas, devices: int, batch_size: int, distribution: str = DATA) -> str | None:
    """Return why the devices did not share the work as requested, None if they did."""
    named = [
        one.device if one.process is None else f"{one.device} of process {one.process}" for one in replicas.replicas
    ]
    if len(named) != devices or len(set(named)) != devices:
        return f"its arrays are on {', '.join(sorted(set(named))) or 'no device'}, not on {devices} devices"
    rows = batch_size // devices if distribution == DATA else batch_size
    if distribution != DATA and not replicas.divided_weights:
        return "each device has all weights"
    if unequal := [f"{one.rows} on {one.device}" for one in replicas.replicas if one.rows != rows]:
        return f"the devices have {', '.join(unequal)} rows of a batch, not {rows}"
    for what in ("updates", "samples"):
        counted = [getattr(one, what) for one in replicas.replicas]
        if len(set(counted)) > 1:
            return f"its devices counted different numbers of {what}: {', '.join(map(str, counted))}"
    return None
