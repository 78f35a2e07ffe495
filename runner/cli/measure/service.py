"""What a container's service pins: its backend and its device, from its environment, so that no argument can lose them.

Read here and nowhere else. Of a matrix the service runs what it can (`runner.matrix.service_selection`); where a
command takes a backend or a device without a matrix, they are put where `--backend` and `--device` put them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from keras_matrix.runner.errors import UsageError

BACKENDS_VARIABLE = "KERAS_BENCHMARK_BACKENDS"
DEVICE_VARIABLE = "KERAS_BENCHMARK_DEVICE"


def pin(args: argparse.Namespace, environment: Mapping[str, str] | None = None) -> None:
    """Hold parsed flags to the service's backend and device. Raises `UsageError` where they ask for others.

    `args.service` becomes the service that a command with a matrix is held to; outside of a service it stays None.
    """
    environment = os.environ if environment is None else environment
    backends = [name for name in environment.get(BACKENDS_VARIABLE, "").split(",") if name]
    device = environment.get(DEVICE_VARIABLE) or None
    args.in_service = bool(backends)
    if backends and hasattr(args, "backend"):
        args.backend = _pinned_backends(args.backend, backends)
    if device and hasattr(args, "assignments"):
        asked = [text.partition("=")[2] for text in args.assignments if text.partition("=")[0] == "device"]
        _refuse_other(asked, device, "--set device=")
    elif device and hasattr(args, "device"):
        _refuse_other([args.device] if args.device else [], device, "--device ")
        args.device = device
    if hasattr(args, "matrix") and (backends or device):
        from keras_matrix.runner.matrix.service_selection import Service  # most commands do without

        args.service = Service(tuple(getattr(args, "backend", None) or backends), device)


def _pinned_backends(asked: list[str], there: list[str]) -> list[str]:
    for name in asked:
        if name not in there:
            told = f"this service contains {', '.join(there)} ({BACKENDS_VARIABLE})"
            raise UsageError(f"--backend {name}: {told}; run the service of {name}")
    return asked or there


def _refuse_other(asked: list[str], device: str, flag: str) -> None:
    for other in asked:
        if other != device:
            raise UsageError(
                f"{flag}{other}: this service is for {device} ({DEVICE_VARIABLE}); run the service for {other}"
            )
