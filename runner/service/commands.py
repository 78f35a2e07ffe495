"""Commands that measure what a merged table lacks: another backend, or all backends interleaved.

They are derived from the command in a run's `run.json`. Runs that were not measured from a matrix file, such as those
of `runner fc` and `runner trace`, give no command, nor do runs of the Python API.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from keras_matrix.records.backends import service_name

TAKEN_OVER = ("--matrix", "--workload", "--filter", "--set", "--repeats")  # the flags that choose the cells
MEASURED_AGAIN = ("--matrix", "--workload", "--filter", "--set", "--backend", "--executor", "--results")
USUAL_MATRIX = "matrix.yaml"
DECIDED_BY = "decided_by"  # key of run.json: the command that decides what a quick look does not
PROGRAM = "runner"  # the first word of the command of a command line


def one_backend(about: Mapping[str, object], backend: str, device: str, *, service: bool) -> str | None:
    """Return the command that measures the cells of a run on another backend, on the same machine.

    `service` is true if the run was measured in a service of compose.yaml.
    """
    flags = _flags(about)
    if flags is None:
        return None
    if service:
        return shlex.join(["docker", "compose", "run", "--rm", service_name(backend, device), *flags])
    return shlex.join(["runner", *_with_matrix(about, flags), "--backend", backend])


def alternating(about: Mapping[str, object], device: str, *, service: bool) -> str | None:
    """Return the command that measures the cells of a run on all backends in one session, interleaved.

    A service gets its device from its environment, so the command names the device if it is not the CPU.
    """
    flags = _flags(about)
    if flags is None:
        return None
    device_options = ["--set", f"device={device}"] if service and device != "cpu" else []
    return shlex.join(["runner", *_with_matrix(about, flags), *device_options, "--executor", "docker"])


def measuring_again(about: Mapping[str, object]) -> str | None:
    """Return the command that measures the cells of a run again, without its number of repeats."""
    if isinstance(decided_by := about.get(DECIDED_BY), str):
        return decided_by
    flags = _flags(about, MEASURED_AGAIN)
    return None if flags is None else shlex.join(["runner", *_with_matrix(about, flags)])


def _with_matrix(about: Mapping[str, object], flags: Sequence[str]) -> list[str]:
    if any(word.partition("=")[0] in ("--matrix", "--workload") for word in flags):
        return list(flags)
    return ["--matrix", str(about.get("matrix_path") or USUAL_MATRIX), *flags]


def _flags(about: Mapping[str, object], names: Sequence[str] = TAKEN_OVER) -> list[str] | None:
    """Return these flags of a run's command with their values; None for a command without a matrix.

    A run of the Python API names a function, whose arguments are not stored.
    """
    command = about.get("command")
    program, *words = [str(word) for word in command] if isinstance(command, (list, tuple)) and command else [PROGRAM]
    if program != PROGRAM:
        return None
    if words and not words[0].startswith("-") and words[0] != "run":
        return None
    return list(_taken_over(words, names))


def _taken_over(words: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        if is_value or word.partition("=")[0] in names:
            yield word
            is_value = not is_value and "=" not in word
        # The value of any other flag is skipped with it.
