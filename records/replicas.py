"""Keras workloads on several devices of one machine: which settings allow them, what each device did, and the proofs.

`devices: N` trains the same global batch on N devices. `distribution: data` gives each device its share of the batch,
`model` its share of the weights. The FC modes divide their own work, among `workers`. What each device held and did is
the record's part, as read from its arrays. That several devices do the work of one is proved by `runner parity WORKLOAD
--devices N`, which trains the same weights and batches a few steps on one device and on N, random layers off, without
timing. A proof is a file for each workload:

    results/parity/devices/<name>.json     a newer proof replaces an older one of the same workload and parameters

The rules are pure; only `load_proofs` and what stores a proof touch files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.backends import TABLE, cell_problem
from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.identity import file_name
from keras_matrix.records.settings import DATA, PIPELINE, Scalar, Settings

# What `semantics` says if batches are not resident on several devices, though they would be on one.
FED_FROM_HOST = (
    "batches are in host memory: the strategy's iterator copies each replica's rows to its device ahead of their step"
)
PROOF_VERSION = 1
PROOFS_FOLDER = Path("parity", "devices")
NOT_DIVIDED = {
    "eager": (False, "a traced step is what is divided"),
    "phase": ("fit", "predict_on_batch of TensorFlow and PyTorch computes the entire batch on every device"),
    "nodes": (1, "the devices are those of one machine; the workload fc has workers on several"),
}


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
    device_names = [
        replica.device if replica.process is None else f"{replica.device} of process {replica.process}"
        for replica in replicas.replicas
    ]
    if len(device_names) != devices or len(set(device_names)) != devices:
        return f"its arrays are on {', '.join(sorted(set(device_names))) or 'no device'}, not on {devices} devices"
    rows_a_device = batch_size // devices if distribution == DATA else batch_size
    if distribution != DATA and not replicas.divided_weights:
        return "each device has all weights"
    if unequal_texts := [
        f"{replica.rows} on {replica.device}" for replica in replicas.replicas if replica.rows != rows_a_device
    ]:
        return f"the devices have {', '.join(unequal_texts)} rows of a batch, not {rows_a_device}"
    for counter in ("updates", "samples"):
        counts = [getattr(replica, counter) for replica in replicas.replicas]
        if len(set(counts)) > 1:
            return f"its devices counted different numbers of {counter}: {', '.join(map(str, counts))}"
    return None


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """The largest relative differences between several devices and one, at one precision; 0 is equal."""

    losses: float | None = about("loss, the worst of all steps; null if not finite")
    update: float | None = about("change of a weight by step 2, of the worst weight; null if not finite")
    update_at: str | None = about("that weight", default=None)


@dataclass(frozen=True, slots=True)
class BackendProof:
    """One backend's training on several devices against its own on one."""

    method: str = about("what divided the work")
    differences: dict[str, ReplicaDifference] = about("by precision")
    left_out: list[str] = about(
        "weights whose update rounding decides: on one device it differs as much if each weight is changed by one unit "
        "in the last place",
        default_factory=list,
    )
    weights: int = about("weights of the model", default=0)
    semantics: list[str] = about("what differs in meaning from one device", default_factory=list)
    findings: list[str] = about("differences beyond their limit", default_factory=list)
    versions: dict[str, str] = about("Python, Keras, the backend and others", default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Return whether every difference is within its limit."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class ReplicaProof:
    """The proof of one workload on all backends."""

    version: int
    workload: str
    params: dict[str, Scalar]
    batch_size: int
    steps: int
    seed: int
    devices: int
    distribution: str = DATA
    started_at: str = about("wall-clock label, UTC, ISO 8601", default="")
    backends: dict[str, BackendProof] = field(default_factory=dict)
    failures: dict[str, str] = about("processes without a result, and why", default_factory=dict)
    unsupported: dict[str, str] = about("processes that a backend does not support, and why", default_factory=dict)
    switched_off: list[str] = about("random layers that ran at rate 0", default_factory=list)
    machine: str | None = about("the CPU, their number and the system", default=None)


def save_proof(results: Path, proof: ReplicaProof) -> Path:
    """Store a proof, replacing the previous one. Raises OSError."""
    name = file_name(proof.workload, [proof.workload, proof.params, proof.devices, proof.distribution])
    path = results / PROOFS_FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, dumps(proof))
    return path


def load_proofs(results: Path) -> tuple[list[ReplicaProof], list[str]]:
    """Return every stored proof, oldest first, and a line for each invalid file. Changes no file."""
    proofs, problems = [], []
    for path in sorted((results / PROOFS_FOLDER).glob("*.json")):
        try:
            proof = decode(ReplicaProof, files.read_json(path, root=results), "proof")
        except (OSError, CodecError) as error:
            problems.append(f"{path}: not a proof of several devices: {error}")
        else:
            if proof.version == PROOF_VERSION:
                proofs.append(proof)
            else:
                problems.append(
                    f"{path}: not a proof of several devices: version must be {PROOF_VERSION}, got {proof.version}"
                )
    return sorted(proofs, key=lambda proof: proof.started_at), problems


def normalised(settings: Settings) -> Settings:
    """Return the settings with `distribution` at its default if there is only one device, which divides nothing."""
    if settings.devices > 1 or settings.distribution == DATA:
        return settings
    return replace(settings, distribution=DATA)


def problems(settings: Settings) -> list[str]:
    """Return why no backend can divide a cell among its devices, a line per setting; empty if one can."""
    if settings.devices == 1:
        return []
    devices = settings.devices
    if spec.is_native(settings):
        mode = settings.params.get("mode")
        return [f"devices: must be 1 for {mode}, which divides its work among workers, got {devices}; set workers"]
    texts = [
        f"devices: must be 1 with {key}: {str(got).lower()}, got {devices}: {why}; set {key}: {str(required).lower()}"
        for key, (required, why) in NOT_DIVIDED.items()
        if (got := getattr(settings, key)) != required
    ]
    if settings.feed == PIPELINE and not settings.leaves("feed"):
        texts.append(
            f"devices: must be 1 with feed: {PIPELINE}, got {devices}: its batches are not divided among devices; "
            "set feed: device_resident or host_fed"
        )
    if settings.batch_size < 1:
        texts.append(f"devices: must be 1 with batch_size: largest, got {devices}; set a batch size")
    elif settings.distribution == DATA and settings.batch_size % devices:
        texts.append(f"devices: must divide batch_size ({settings.batch_size}), got {devices}")
    return texts


def backend_problem(settings: Settings) -> str | None:
    """Return why this backend cannot run the cell, though another one can: None if it can."""
    if problem := cell_problem(settings):
        return problem
    if settings.devices == 1:
        return None
    backend = TABLE[settings.backend]
    if settings.device not in backend.replica_devices:
        able_text = f"only on {' and '.join(backend.replica_devices)}" if backend.replica_devices else "on no device"
        return f"devices: {backend.name} uses several devices {able_text}, not on {settings.device}; set devices: 1"
    if settings.distribution not in backend.distributions:
        able_text = ", ".join(
            able_backend.name for able_backend in TABLE.values() if settings.distribution in able_backend.distributions
        )
        return (
            f"distribution: {backend.name} divides {' and '.join(backend.distributions)}, not {settings.distribution}, "
            f"which {able_text} does; set distribution: {DATA}, or exclude the backend"
        )
    if not backend.compiles_replicas and (settings.jit is True or settings.league == "matched"):
        requested_text = "jit: true" if settings.jit is True else "league: matched"
        return (
            f"devices: {backend.name} does not compile a step on several devices ({backend.not_compiled}), which "
            f"{requested_text} requires; set jit: auto and league: as_shipped, or devices: 1"
        )
    return None


def too_few_cpus(settings: Settings, cpus: int) -> str | None:
    """Return why a cell on the CPU has too few CPUs for its devices, None if there is one for each."""
    if settings.device != "cpu" or settings.devices <= cpus:
        return None
    return (
        f"devices: must be at most the number of CPUs that the cell may use ({cpus}), got {settings.devices}: a device "
        f"without a CPU of its own shows no scaling; lower devices to {cpus}"
    )
