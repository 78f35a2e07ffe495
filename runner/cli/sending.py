"""Pushing from the runner: before it, whether it can be at all; after it, without ever failing the measurement."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import InfrastructureError, UsageError


def check(address: str, flag: str = "--upload") -> None:
    """Refuse an address that is none, before anything is measured or sent. Raises `UsageError` that names the flag."""
    from uploader.errors import BadInput
    from uploader.warehouse import is_local

    try:
        is_local(address, flag)
    except BadInput as error:
        raise UsageError(str(error)) from error


def after_run(address: str, results: Path) -> None:
    """Push what the run left; what goes wrong is told and leaves it pending for `uploader push`."""
    from records.store import StoreFailure
    from uploader.errors import UploadError

    try:
        send(address, results)
    except Exception as error:  # noqa: BLE001 - whatever it is, the measurement is done and must not be lost to it
        known = isinstance(error, UploadError | StoreFailure | OSError)
        print(
            f"runner: the upload did not succeed, the measurement did: {'' if known else type(error).__name__ + ': '}"
            f"{error}\n"
            f"runner: nothing is lost; later: uploader push --to {address} --results {results}",
            file=sys.stderr,
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raise an error of the uploader as one of the runner's: `UsageError` or `InfrastructureError`."""
    from uploader.errors import UploadError

    try:
        yield
    except UploadError as error:
        kind = UsageError if error.exit_code == UsageError.exit_code else InfrastructureError
        raise kind(str(error)) from error


def send(address: str, results: Path) -> None:
    """Push a results folder. Raises `UploadError`."""
    from uploader.cli.main import parser

    args = parser().parse_args(["push", "--to", address, "--results", str(results), "--quiet"])
    args.main(args)
