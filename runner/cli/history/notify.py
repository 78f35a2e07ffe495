"""Notify of changes for the worse: `runner history --notify`. Nothing is sent without that flag."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.notify.places import (
    FORMS,
    TOKEN_VARIABLE,
    GitHub,
    check_site,
    owners_of,
    place_of,
    token_of,
)
from keras_matrix.runner.service.notify import NotifyRequest


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of notifying."""
    group = parser.add_argument_group("notifying (docs/notify.md)")
    group.add_argument("--notify", metavar="PLACE", help=f"notify of each change for the worse once: {FORMS}")
    group.add_argument("--dry-run", action="store_true", help="print what --notify would send, and send nothing")
    group.add_argument(
        "--owner",
        action="append",
        metavar="[PATTERN=]@NAME",
        help="who is named in notifications about these cells; may be repeated, the last that fits counts",
    )
    group.add_argument("--site", metavar="URL", help="address of the site of `runner report --publish`, to link to")
    group.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"file with the token; default: {TOKEN_VARIABLE}"
    )


def asked(args: argparse.Namespace, *, alone: bool) -> NotifyRequest | None:
    """Return what is asked for, None without `--notify`; `alone` without another use of the command.

    Raises `UsageError`.
    """
    given = {"--dry-run": args.dry_run, "--owner": args.owner, "--site": args.site, "--token-file": args.token_file}
    for flag, value in given.items():
        if value and args.notify is None:
            raise UsageError(f"{flag}: belongs to: runner history --notify PLACE")
    if args.notify is None:
        return None
    if not alone or args.out is not None or args.json:
        raise UsageError("--notify: cannot be combined with annotate, ack, --calibrate, --json or --out")
    place = place_of(args.notify)
    check_site(args.site)
    if args.token_file is not None and not isinstance(place, GitHub):
        raise UsageError("--token-file: belongs to: runner history --notify github:OWNER/REPO")
    token = token_of(args.token_file) if isinstance(place, GitHub) else None
    if isinstance(place, GitHub) and token is None and not args.dry_run:
        raise UsageError(
            f"--notify: {place} needs a token that may write issues: set {TOKEN_VARIABLE}, or name a file with "
            "--token-file; --dry-run needs none"
        )
    return NotifyRequest(place, token, owners_of(args.owner or ()), args.site, args.dry_run)
