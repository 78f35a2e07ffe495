"""Serve the live dashboard over all runs, from the local warehouse or from BigQuery.

    runner dashboard                                        results/warehouse, kept up to date with results
    runner dashboard --from bigquery://PROJECT.DATASET      what was uploaded; needs dataViewer and jobUser

From BigQuery the rows are read at most once in --refresh minutes, with three queries, for any number of visitors and
any selection; without a visitor nothing is read.

It answers GET and HEAD under the loopback's names only. To let other machines in, name the hosts under which they reach
it: --listen 0.0.0.0:8080 --public bench.example.org"""

from __future__ import annotations

import argparse
from datetime import date
from functools import partial

from keras_matrix.dashboards.live.app import hosts, serve
from keras_matrix.runner.cli.options import add_results_option, number
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service import upload
from keras_matrix.runner.service.dashboard import source_of
from keras_matrix.uploader.cli import flags, options
from keras_matrix.uploader.opening import Target

REFRESH_MIN = 10.0
LEAST_REFRESH_MIN = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    parser.add_argument("--from", dest="source", default="local", metavar="ADDRESS", help="default: local")
    parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="default: 127.0.0.1:8080")
    parser.add_argument(
        "--public",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="also answer under these host names; needed to listen on anything but the loopback",
    )
    parser.add_argument(
        "--since",
        type=_day,
        metavar="DATE",
        help="the first day to show, such as 2026-01-31; default: 90 days back from BigQuery, else every day",
    )
    _add_bigquery_options(parser)


def _add_bigquery_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("BigQuery")
    group.add_argument(
        "--refresh",
        type=partial(number, "--refresh", LEAST_REFRESH_MIN, 24 * 60),
        default=REFRESH_MIN,
        metavar="MINUTES",
        help="read the rows at most once in this many minutes, 1 to 1440; default: 10",
    )
    flags.add(group, flags.READING)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    try:
        listen_address = hosts.listen_address(args.listen, args.public)
    except ValueError as error:
        raise UsageError(str(error)) from error
    upload.check(args.source, "--from")
    with upload.explained():
        target = Target(args.source, args.results, options.warehouse_options(args))
        serve.serve(source_of(target, args.since, args.refresh), listen_address)
    return 0


def _day(text: str) -> str | None:
    """Read a day; '' is the default, as from an unset variable in `compose.yaml`. Raises `UsageError`."""
    if not text:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(f"--since: must be a day such as 2026-01-31, got {text!r}") from error
