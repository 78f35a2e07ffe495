"""Serve the live dashboard: every question over all runs, read from the local warehouse or from BigQuery.

runner dashboard                                        results/warehouse, brought up to date first
runner dashboard --from bigquery://PROJECT.DATASET      what was uploaded; needs dataViewer and jobUser"""

from __future__ import annotations

import argparse

from runner.cli.options import add_results_option
from runner.errors import UsageError
from uploader.cli import flags, options

NAME = "dashboard"
HELP = "serve the live dashboard"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    parser.add_argument("--from", dest="source", default="local", metavar="ADDRESS", help="default: local")
    parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="default: 127.0.0.1:8080")
    flags.add(parser.add_argument_group("BigQuery"), flags.READING)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from dashboards.app.application import address
    from dashboards.app.serve import serve
    from runner.cli import sending
    from uploader.warehouse import LOCAL, open_warehouse

    try:
        host, port = address(args.listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from error
    sending.check(args.source, "--from")
    with sending.explained():
        if args.source == LOCAL:
            sending.send(sending.Upload(LOCAL), args.results)
        warehouse = open_warehouse(args.source, args.results, options.reached(args))
        serve(warehouse, host, port)
    return 0
