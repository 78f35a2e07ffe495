"""The GPUs, through the driver's own tool nvidia-smi: the host side holds no GPU library.

Promise: what the tool does not tell is `Unread` with its own words. Without a loaded driver there is nothing to ask.
Not known here: processes of other containers, which the driver hides; GPUs of other makers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from analysis.surroundings.readings import Gpu, Unread
from runner.executors.output import printable
from runner.surroundings.tree import Tree, whole_number

MHZ = 1_000_000
LIMIT_S = 20.0
DRIVER = "/proc/driver/nvidia/version"
COLUMNS = "index,uuid,name,clocks.sm,clocks.max.sm,temperature.gpu,persistence_mode"
# Renamed with driver 535; each driver knows one of them, some both.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")

Ask = Callable[[list[str]], str | Unread]


def gpus(tree: Tree, ask: Ask | None = None) -> tuple[Gpu, ...] | Unread | None:
    """Return every GPU; None without a driver. `ask` runs the tool with arguments and returns what it prints."""
    if isinstance(tree.text(DRIVER), Unread):
        return None
    ask = ask or nvidia_smi
    told: str | Unread = Unread("never asked")
    for name in REASONS:
        told = ask([f"--query-gpu={COLUMNS},{name}", "--format=csv,noheader,nounits"])
        if not isinstance(told, Unread):
            break
    if isinstance(told, Unread):
        return told
    users = ask(["--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"])
    found = [_gpu(row, users) for row in _rows(told, 8)]
    return tuple(found) or Unread("nvidia-smi names no GPU")


def nvidia_smi(arguments: list[str]) -> str | Unread:
    """Run the tool and return what it prints."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        return Unread("nvidia-smi is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unread(f"nvidia-smi: {error}")
    text = printable(done.stdout.decode("utf-8", errors="replace"))
    if done.returncode != 0:
        lines = text.strip().splitlines() or [f"it ended with {done.returncode}"]
        return Unread(f"nvidia-smi: {lines[0][:100]}")
    return text


def _gpu(row: list[str], users: str | Unread) -> Gpu:
    index, uuid, name, clock, max_clock, temperature, persistence, reasons = row
    return Gpu(
        index=whole_number(index) or 0,
        name=name[:60],
        clock_hz=_hertz(clock),
        max_clock_hz=_hertz(max_clock),
        temperature_c=_number(temperature),
        throttle_mask=_mask(reasons),
        persistence=_switch(persistence),
        users=users if isinstance(users, Unread) else _users(users, uuid),
    )


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [[part.strip() for part in line.split(", ")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def _users(text: str, uuid: str) -> tuple[int, ...]:
    pids = [whole_number(pid) for found, pid in _rows(text, 2) if found == uuid]
    return tuple(sorted(pid for pid in pids if pid is not None))


def _number(text: str) -> int | Unread:
    found = whole_number(text)
    return Unread(f"nvidia-smi tells {text[:30]!r}") if found is None else found


def _hertz(text: str) -> int | Unread:
    found = _number(text)
    return found if isinstance(found, Unread) else found * MHZ


def _switch(text: str) -> bool | Unread:
    known = {"Enabled": True, "Disabled": False}
    return known.get(text, Unread(f"nvidia-smi tells {text[:30]!r}"))


def _mask(text: str) -> int | Unread:
    try:
        return int(text, 16)
    except ValueError:
        return Unread(f"nvidia-smi tells {text[:30]!r}")
