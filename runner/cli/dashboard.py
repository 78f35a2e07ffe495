"""Serve the live dashboard: every question over all runs, read from the local warehouse or from BigQuery.

runner dashboard                                        results/warehouse, brought up to date first
runner dashboard --from bigquery://PROJECT.DATASET      what was uploaded; needs dataViewer and jobUser

It answers GET and HEAD under the loopback's names only. To let other machines in, name the hosts under which they reach
it: --listen 0.0.0.0:8080 --public bench.example.org"""

from __future__ import annotations

import argparse

from runner.cli.options import add_results_option
from runner.errors import UsageError

NAME = "dashboard"
HELP = "serve the live dashboard"
MOST_BYTES_BILLED = 10 << 30


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
    parser.add_argument("--location", metavar="REGION", help="BigQuery: where the dataset is")
    parser.add_argument(
        "--maximum-bytes-billed",
        type=int,
        default=MOST_BYTES_BILLED,
        metavar="N",
        help="BigQuery: refuse a query that reads more; default: 10 GiB",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from dashboards.app import hosts
    from dashboards.app.serve import serve
    from runner.cli import sending
    from uploader.warehouse import LOCAL, Options, open_warehouse

    try:
        place = hosts.place(args.listen, args.public)
    except ValueError as error:
        raise UsageError(str(error)) from error
    sending.check(args.source, "--from")
    with sending.explained():
        if args.source == LOCAL:
            sending.send(LOCAL, args.results)
        options = Options(location=args.location, most_bytes_billed=args.maximum_bytes_billed)
        warehouse = open_warehouse(args.source, args.results, options)
        serve(warehouse, place)
    return 0
