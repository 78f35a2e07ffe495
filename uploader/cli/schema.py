"""Print the tables of this version: as SQL that creates them, or as a page in Markdown."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("--dataset", default="DATASET", metavar="PROJECT.DATASET", help="the dataset in the SQL")
    parser.add_argument("--markdown", action="store_true", help="print a page in Markdown instead")


def run(args: argparse.Namespace) -> int:
    """Print the SQL or the page."""
    from keras_matrix.uploader.bigquery import ddl

    print(ddl.page() if args.markdown else "\n\n".join(ddl.statements(args.dataset)), end="" if args.markdown else "\n")
    return 0
