"""The commands that would measure what a merged table lacks: another backend, or all backends alternately.

Pure: made from what a run's `run.json` says of its own command. No command is named where a run was not measured from a
matrix file, as those of `runner fc` and `runner trace`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from keras_matrix.runner.matrix.service_selection import service_name

TAKEN_OVER = ("--matrix", "--filter", "--set", "--repeats")  # the flags that say which cells
USUAL_MATRIX = "matrix.yaml"


def one_backend(about: Mapping[str, object], backend: str, device: str, *, service: bool) -> str | None:
    """Return the command that measures the cells of a run on another backend, where that run was measured.

    `service` says that it was measured in a service of compose.yaml.
    """
    flags = _flags(about)
    if flags is None:
        return None
    if service:
        return shlex.join(["docker", "compose", "run", "--rm", service_name(backend, device), *flags])
    return shlex.join(["runner", *_with_matrix(about, flags), "--backend", backend])


def alternating(about: Mapping[str, object], device: str, *, service: bool) -> str | None:
    """Return the command that measures the cells of a run on all backends in one session, alternately.

    A service has its device from its environment, so the command names it where it is not the usual one.
    """
    flags = _flags(about)
    if flags is None:
        return None
    own = ["--set", f"device={device}"] if service and device != "cpu" else []
    executor = ["--executor", "docker"]
    return shlex.join(["runner", *_with_matrix(about, flags), *own, *executor])


def _with_matrix(about: Mapping[str, object], flags: Sequence[str]) -> list[str]:
    if any(word.partition("=")[0] == "--matrix" for word in flags):
        return list(flags)
    return ["--matrix", str(about.get("matrix_path") or USUAL_MATRIX), *flags]


def _flags(about: Mapping[str, object]) -> list[str] | None:
    """Return the words of a run's command that say which cells; None for a command that takes no matrix."""
    command = about.get("command")
    words = [str(word) for word in command][1:] if isinstance(command, (list, tuple)) else []
    if words and not words[0].startswith("-") and words[0] != "run":
        return None
    return list(_taken_over(words))


def _taken_over(words: Sequence[str]) -> Iterator[str]:
    taken = False
    for word in words:
        if taken or word.partition("=")[0] in TAKEN_OVER:
            yield word
            taken = not taken and "=" not in word
        # The value of any other flag is passed over with it.
