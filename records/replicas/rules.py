"""The rules of Keras workloads on several devices of one machine: which settings allow them. Pure.

`devices: N` trains the same global batch on N devices. `distribution: data` gives each device its share of the batch,
`model` its share of the weights. The FC modes divide their own work, among `workers`.
"""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.records.backends import TABLE
from keras_matrix.records.fc import spec
from keras_matrix.records.settings import DATA, PIPELINE, Settings

NOT_DIVIDED = {
    "eager": (False, "a traced step is what is divided"),
    "phase": ("fit", "predict_on_batch of TensorFlow and PyTorch computes the entire batch on every device"),
    "nodes": (1, "the devices are those of one machine; the workload fc has workers on several"),
}


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
    found = [
        f"devices: must be 1 with {key}: {str(got).lower()}, got {devices}: {why}; set {key}: {str(wanted).lower()}"
        for key, (wanted, why) in NOT_DIVIDED.items()
        if (got := getattr(settings, key)) != wanted
    ]
    if settings.feed == PIPELINE and not settings.leaves("feed"):
        found.append(
            f"devices: must be 1 with feed: {PIPELINE}, got {devices}: its batches are not divided among devices; "
            "set feed: device_resident or host_fed"
        )
    if settings.batch_size < 1:
        found.append(f"devices: must be 1 with batch_size: largest, got {devices}; set a batch size")
    elif settings.distribution == DATA and settings.batch_size % devices:
        found.append(f"devices: must divide batch_size ({settings.batch_size}), got {devices}")
    return found


def backend_problem(settings: Settings) -> str | None:
    """Return why this backend cannot divide the cell among its devices, though another one can; None if it can."""
    if settings.devices == 1:
        return None
    own = TABLE[settings.backend]
    if settings.device not in own.replica_devices:
        able = f"only on {' and '.join(own.replica_devices)}" if own.replica_devices else "on no device"
        return f"devices: {own.name} uses several devices {able}, not on {settings.device}; set devices: 1"
    if settings.distribution not in own.distributions:
        able = ", ".join(one.name for one in TABLE.values() if settings.distribution in one.distributions)
        return (
            f"distribution: {own.name} divides {' and '.join(own.distributions)}, not {settings.distribution}, which "
            f"{able} does; set distribution: {DATA}, or exclude the backend"
        )
    if not own.compiles_replicas and (settings.jit is True or settings.league == "matched"):
        asked = "jit: true" if settings.jit is True else "league: matched"
        return (
            f"devices: {own.name} does not compile a step on several devices ({own.not_compiled}), which {asked} "
            "requires; set jit: auto and league: as_shipped, or devices: 1"
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
