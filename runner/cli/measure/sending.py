"""Pushing results from the runner: checked before the measurement, and never a reason for it to fail."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.uploader.cli import push
from keras_matrix.uploader.errors import BadInput, UploadError
from keras_matrix.uploader.warehouse import is_local

PREFIX = "upload"


@dataclass(frozen=True, slots=True)
class Upload:
    """The address that results are pushed to, and the options of `uploader push`."""

    address: str
    options: tuple[str, ...] = ()

    def arguments(self, results: Path) -> list[str]:
        """Return the arguments of `uploader` that push a results folder."""
        return ["push", "--to", self.address, "--results", str(results), *self.options]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --upload and, as --upload-NAME, every option of `uploader push`."""
    group = parser.add_argument_group("upload after the run, with the options of uploader push")
    group.add_argument(
        f"--{PREFIX}", metavar="ADDRESS", help="push to local or bigquery://PROJECT.DATASET; see uploader push --help"
    )
    push.forwarded(PREFIX).add_to(group)


def upload_of(args: argparse.Namespace) -> Upload | None:
    """Return the upload that the flags request, else None. Raises `UsageError` that names the flag."""
    options = push.forwarded(PREFIX).given(args)
    if args.upload is not None:
        check(args.upload)
        return Upload(args.upload, options)
    if options:
        raise UsageError(f"--{PREFIX}-{options[0].removeprefix('--').partition('=')[0]}: needs --{PREFIX} ADDRESS")
    return None


def check(address: str, flag: str = "--upload") -> None:
    """Refuse an invalid address before anything is measured or sent. Raises `UsageError` that names the flag."""
    try:
        is_local(address, flag)
    except BadInput as error:
        raise UsageError(str(error)) from error


def after_run(upload: Upload, results: Path) -> None:
    """Push the results. A failure is reported on stderr and leaves the rows pending for `uploader push`."""
    try:
        with redirect_stdout(sys.stderr):  # stdout has the run's table or its JSON document
            send(upload, results)
    except Exception as error:  # noqa: BLE001 - no error may cost the finished measurement
        known = isinstance(error, UploadError | StoreFailure | OSError)
        print(
            f"runner: the upload did not succeed, the measurement did: {'' if known else type(error).__name__ + ': '}"
            f"{error}\n"
            f"runner: nothing is lost; later: uploader {shlex.join(upload.arguments(results))}",
            file=sys.stderr,
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
