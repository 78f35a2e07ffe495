"""Pushes results from the runner: checked before the measurement, and never a reason for it to fail."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.uploader.errors import BadInput, UploadError
from keras_matrix.uploader.opening import PushChoices, Target, require_results
from keras_matrix.uploader.warehouse import Options, is_local


@dataclass(frozen=True, slots=True)
class Upload:
    """A push of results: the warehouse's address and options, and `flags`, which repeat it with `uploader push`."""

    address: str
    options: Options = Options()
    choices: PushChoices = PushChoices()
    flags: tuple[str, ...] = ()

    def command(self, results: Path) -> str:
        """Return the command that pushes a results folder in this way."""
        return shlex.join(["uploader", "push", "--to", self.address, "--results", str(results), *self.flags])


def check(address: str, flag: str = "--upload") -> None:
    """Refuse an invalid address before anything is measured or sent. Raises `UsageError` that names the flag."""
    try:
        is_local(address, flag)
    except BadInput as error:
        raise UsageError(str(error)) from error


def after_run(upload: Upload, results: Path, warn: Callable[[str], None]) -> None:
    """Push the results. A failure is a warning and leaves the rows pending for `uploader push`."""
    try:
        send(upload, results, sys.stderr)  # stdout has the run's table or its JSON document
    except Exception as error:  # noqa: BLE001 - no error may cost the finished measurement
        is_expected = isinstance(error, UploadError | StoreFailure | OSError)
        warn(
            f"the upload did not succeed, the measurement did: {'' if is_expected else type(error).__name__ + ': '}"
            f"{error}\n"
            f"runner: nothing is lost; later: {upload.command(results)}"
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raise an error of the uploader as one of the runner's: `UsageError` or `InfrastructureError`."""
    try:
        yield
    except UploadError as error:
        kind = UsageError if error.exit_code == UsageError.exit_code else InfrastructureError
        raise kind(str(error)) from error


def send(upload: Upload, results: Path, problems: TextIO | None = None) -> None:
    """Push a results folder, and write its problems as lines to a stream, by default stdout. Raises `UploadError`."""
    from keras_matrix.uploader.push import push_to, say_nothing

    def report(line: str) -> None:
        (problems or sys.stdout).write(f"{line}\n")

    require_results(results)
    push_to(Target(upload.address, results, upload.options), upload.choices, say_nothing, report)
