"""The backend and device of a container's service, from its environment: no argument can change them.

The variables are read only here. Of a matrix the service runs the cells it can (`runner.matrix.service_selection`); for
a command with a backend or device but without a matrix, they replace the values of `--backend` and `--device`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from keras_matrix.runner.errors import UsageError

BACKENDS_VARIABLE = "KERAS_BENCHMARK_BACKENDS"
DEVICE_VARIABLE = "KERAS_BENCHMARK_DEVICE"


def pin(args: argparse.Namespace, environment: Mapping[str, str] | None = None) -> None:
    """Set the service's backend and device in parsed flags. Raises `UsageError` if the flags name others.

    `args.service` becomes the service of a command with a matrix; outside of a service it remains None.
    """
    environment = os.environ if environment is None else environment
    backends = [name for name in environment.get(BACKENDS_VARIABLE, "").split(",") if name]
    device = environment.get(DEVICE_VARIABLE) or None
    args.in_service = bool(backends)
    if backends and hasattr(args, "backend"):
        args.backend = _pinned_backends(args.backend, backends)
    if device and hasattr(args, "assignments"):
        devices = [text.partition("=")[2] for text in args.assignments if text.partition("=")[0] == "device"]
        _refuse_other(devices, device, "--set device=")
    elif device and hasattr(args, "device"):
        _refuse_other([args.device] if args.device else [], device, "--device ")
        args.device = device
    if hasattr(args, "matrix") and (backends or device):
        from keras_matrix.runner.matrix.service_selection import Service  # needed by few commands

        args.service = Service(tuple(getattr(args, "backend", None) or backends), device)


def _pinned_backends(named_backends: list[str], available: list[str]) -> list[str]:
    for name in named_backends:
        if name not in available:
            service_text = f"this service has {', '.join(available)} ({BACKENDS_VARIABLE})"
            raise UsageError(f"--backend {name}: {service_text}; run the service of {name}")
    return named_backends or available


def _refuse_other(devices: list[str], device: str, flag: str) -> None:
    for other in devices:
        if other != device:
            raise UsageError(
                f"{flag}{other}: this service is for {device} ({DEVICE_VARIABLE}); run the service for {other}"
            )
