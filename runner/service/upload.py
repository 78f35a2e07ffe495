"""Pushes results from the runner: checked before the measurement, and never a reason for it to fail."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.uploader.errors import BadInput, UploadError
from keras_matrix.uploader.warehouse import is_local


@dataclass(frozen=True, slots=True)
class Upload:
    """The address that results are pushed to, and the options of `uploader push`."""

    address: str
    options: tuple[str, ...] = ()

    def arguments(self, results: Path) -> list[str]:
        """Return the arguments of `uploader` that push a results folder."""
        return ["push", "--to", self.address, "--results", str(results), *self.options]


def check(address: str, flag: str = "--upload") -> None:
    """Refuse an invalid address before anything is measured or sent. Raises `UsageError` that names the flag."""
    try:
        is_local(address, flag)
    except BadInput as error:
        raise UsageError(str(error)) from error


def after_run(upload: Upload, results: Path, warn: Callable[[str], None]) -> None:
    """Push the results. A failure is a warning and leaves the rows pending for `uploader push`."""
    try:
        with redirect_stdout(sys.stderr):  # stdout has the run's table or its JSON document
            send(upload, results)
    except Exception as error:  # noqa: BLE001 - no error may cost the finished measurement
        is_expected = isinstance(error, UploadError | StoreFailure | OSError)
        warn(
            f"the upload did not succeed, the measurement did: {'' if is_expected else type(error).__name__ + ': '}"
            f"{error}\n"
            f"runner: nothing is lost; later: uploader {shlex.join(upload.arguments(results))}"
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raise an error of the uploader as one of the runner's: `UsageError` or `InfrastructureError`."""
    try:
        yield
    except UploadError as error:
        kind = UsageError if error.exit_code == UsageError.exit_code else InfrastructureError
        raise kind(str(error)) from error


def send(upload: Upload, results: Path) -> None:
    """Push a results folder. Raises `UploadError`."""
    from keras_matrix.uploader.cli.main import parser

    args = parser().parse_args([*upload.arguments(results), "--quiet"])
    args.main(args)
