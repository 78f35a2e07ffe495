"""Pushing results from the runner: checked before the measurement, and never a reason for it to fail."""

from __future__ import annotations

import argparse

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.upload import Upload, check
from keras_matrix.uploader.cli import push

PREFIX = "upload"


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
