"""What a GPU's driver reports, judged. Pure.

Source of the bits: NVML's nvmlClocksEventReasons (nvml.h), the same numbers nvidia-smi prints.
Not known here: whether clocks are locked, which the driver does not tell; GPUs of other makers.
"""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.analysis.surroundings.findings import Check, Limit, MachineFinding, Rating, judged, unread
from keras_matrix.analysis.surroundings.readings import Gpu, GpuProcess
from keras_matrix.records.host.procfs import Unread

MHZ = 1_000_000
MIB = 1 << 20
# Data-centre GPUs begin to slow down between 85 and 95 C; nvidia-smi's own limit is not told on every one.
TEMPERATURE_C = Limit(75.0, 85.0)
# 0x1 (idle), 0x2 (clocks set by the user) and 0x100 (display) are no throttling.
BAD_REASONS = {
    0x08: "hardware slowdown",
    0x20: "too hot (driver)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
DOUBTFUL_REASONS = {0x04: "power cap", 0x10: "held to another GPU's clock"}


def gpu_findings(gpus: tuple[Gpu, ...] | Unread | None) -> Iterator[MachineFinding]:
    """Yield what is found of every GPU; one finding where there is none or nothing can be read."""
    if isinstance(gpus, Unread):
        yield unread(Check.GPU, gpus)
        return
    if not gpus:
        yield MachineFinding(Check.GPU, Rating.FINE, "no NVIDIA driver is loaded; other makers' are not looked for")
        return
    for gpu in gpus:
        yield MachineFinding(Check.GPU, Rating.FINE, f"GPU {gpu.index}: {gpu.name}{_capability(gpu)}")
        yield from (rule(gpu) for rule in (_clocks, _temperature, _throttling, _persistence, _users, _mig, _ecc))


def reasons_in_words(mask: int) -> list[str]:
    """Return what holds a GPU's clock back, the bad reasons first."""
    return [text for bit, text in {**BAD_REASONS, **DOUBTFUL_REASONS}.items() if mask & bit]


def _clocks(gpu: Gpu) -> MachineFinding:
    if isinstance(gpu.clock_hz, Unread):
        return unread(Check.GPU_CLOCKS, gpu.clock_hz)
    if isinstance(gpu.max_clock_hz, Unread):
        return unread(Check.GPU_CLOCKS, gpu.max_clock_hz)
    why = f"whether they are locked; now {gpu.clock_hz / MHZ:.0f} of at most {gpu.max_clock_hz / MHZ:.0f} MHz"
    advice = "hold them while measuring: --set clocks=locked"
    return MachineFinding(Check.GPU_CLOCKS, Rating.UNREAD, f"not readable: {why}", advice)


def _temperature(gpu: Gpu) -> MachineFinding:
    if isinstance(gpu.temperature_c, Unread):
        return unread(Check.GPU_TEMPERATURE, gpu.temperature_c)
    verdict = TEMPERATURE_C.verdict(gpu.temperature_c)
    return judged(Check.GPU_TEMPERATURE, verdict, f"{gpu.temperature_c:.0f} C", "let it cool, mend its cooling")


def _throttling(gpu: Gpu) -> MachineFinding:
    mask = gpu.throttle_mask
    if isinstance(mask, Unread):
        return unread(Check.GPU_THROTTLING, mask)
    bad = any(mask & bit for bit in BAD_REASONS)
    reasons = reasons_in_words(mask)
    verdict = Rating.BAD if bad else Rating.DOUBTFUL if reasons else Rating.FINE
    seen = ", ".join(reasons) or "none now"
    return judged(Check.GPU_THROTTLING, verdict, seen, "lock the clocks lower, cool it, raise its power limit")


def _persistence(gpu: Gpu) -> MachineFinding:
    if isinstance(gpu.persistence, Unread):
        return unread(Check.GPU_PERSISTENCE, gpu.persistence)
    if gpu.persistence:
        return MachineFinding(Check.GPU_PERSISTENCE, Rating.FINE, "on")
    seen = "off: the driver unloads between processes, and each starts it anew"
    return MachineFinding(Check.GPU_PERSISTENCE, Rating.DOUBTFUL, seen, "nvidia-smi -pm 1")


def process_text(process: GpuProcess) -> str:
    """Return a process's name, id and GPU memory, as far as they are known."""
    details = [f"process {process.pid}"] if process.name else []
    if process.memory_bytes is not None:
        details.append(f"{process.memory_bytes / MIB:.0f} MiB")
    name = process.name or f"process {process.pid}"
    return f"{name} ({', '.join(details)})" if details else name


def _capability(gpu: Gpu) -> str:
    return "" if isinstance(gpu.capability, Unread) else f", compute capability {gpu.capability[0]}.{gpu.capability[1]}"


def _users(gpu: Gpu) -> MachineFinding:
    if isinstance(gpu.users, Unread):
        return unread(Check.GPU_USERS, gpu.users)
    if not gpu.users:
        return MachineFinding(Check.GPU_USERS, Rating.FINE, "no other process")
    seen = f"other processes compute on it: {', '.join(process_text(one) for one in gpu.users)}"
    return MachineFinding(
        Check.GPU_USERS, Rating.BAD, seen, "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES"
    )


def _mig(gpu: Gpu) -> MachineFinding:
    if isinstance(gpu.mig, Unread):
        return unread(Check.GPU_MIG, gpu.mig)
    seen = "divided by Multi-Instance GPU: a slice has part of the GPU, and its power is the whole GPU's"
    return judged(
        Check.GPU_MIG, Rating.DOUBTFUL if gpu.mig else Rating.FINE, seen if gpu.mig else "off", "nvidia-smi -mig 0"
    )


def _ecc(gpu: Gpu) -> MachineFinding:
    if isinstance(gpu.ecc, Unread) and gpu.ecc.absent:
        return MachineFinding(Check.GPU_ECC, Rating.FINE, "this GPU has no ECC")
    if gpu.ecc is False:
        return MachineFinding(Check.GPU_ECC, Rating.FINE, "off: memory errors are not detected")
    if isinstance(gpu.ecc_errors, Unread):
        return unread(Check.GPU_ECC, gpu.ecc_errors)
    seen = f"{gpu.ecc_errors} uncorrected memory errors since the driver was loaded"
    verdict = Rating.BAD if gpu.ecc_errors else Rating.FINE
    return judged(Check.GPU_ECC, verdict, seen, "reset the GPU: nvidia-smi --gpu-reset; replace it if they return")
