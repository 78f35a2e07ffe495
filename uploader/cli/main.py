"""The command `uploader`: parses arguments, runs a subcommand, and reports an error as one message and an exit code.

A subcommand is a row of `COMMANDS` and a module of this package with `configure(parser)` and `run(args) -> exit code`,
which is imported only if that subcommand is called. Large dependencies are imported only when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from importlib import import_module

from keras_matrix.records.host.import_path import ignore_other_modules
from keras_matrix.records.host.streams import discard, standard_streams
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import near
from keras_matrix.uploader.cli.command_parser import CommandParser
from keras_matrix.uploader.errors import BadInput, UploadError

# The name of each subcommand: its module, and its line in `uploader --help`.
COMMANDS = {
    "push": ("push", "send the rows that the warehouse does not have yet"),
    "init": ("init", "create dataset, tables and views; print the minimum IAM roles"),
    "status": ("status", "print pending batches and the rows that were set aside with their reasons"),
    "migrate": (
        "migrate",
        "add new NULLABLE columns and replace the views; fail with the differences if there are others",
    ),
    "verify": ("verify", "compare row counts and checksums of the warehouse with the records"),
    "query": ("query", "run one SELECT in BigQuery's dialect"),
    "import": ("import_", "import external results with a mapping of columns"),
    "schema": ("schema", "print the tables: DDL or documentation"),
}
DESCRIPTION = """Upload records for dashboards, each row exactly once: to Parquet files next to the results (the
default, which needs no server) or to BigQuery."""
EPILOG = """addresses: local (results/warehouse), local:FOLDER, bigquery://PROJECT.DATASET

exit codes: 0 complete, 1 rows were set aside or differ, 2 bad input, 3 the warehouse or the outbox cannot be used at
the moment (pending batches stay pending), 130 interrupted"""


def parser(command_names: Collection[str] = COMMANDS.keys()) -> argparse.ArgumentParser:
    """Return the command line; of subcommands that are not `command_names`, only the names and summaries."""
    top = argparse.ArgumentParser(
        prog="uploader",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=CommandParser
    )
    for name, (path, summary) in COMMANDS.items():
        if name not in command_names:
            commands.add_parser(name, help=summary)
            continue
        module = import_module(f"keras_matrix.uploader.cli.{path}")
        configured = commands.add_parser(name, help=summary, description=module.__doc__)
        configured.commands = COMMANDS
        configured.formatter_class = argparse.RawDescriptionHelpFormatter
        module.configure(configured)
        configured.set_defaults(main=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    if argv is None:
        ignore_other_modules()
    with standard_streams(own_process=argv is None):
        return _called(argv)


def _called(argv: Sequence[str] | None) -> int:
    """Run a subcommand; return its exit code, or that of its error, whose message is printed."""
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        if words and not words[0].startswith("-") and words[0] not in COMMANDS:
            command_names, near_text = ", ".join(COMMANDS), near(words[0], COMMANDS)
            raise BadInput(f"COMMAND: must be one of {command_names}, got {words[0]!r}{near_text}")
        args = parser(words[:1]).parse_args(words)
        return int(args.main(args))
    except UploadError as error:
        return _report(str(error), error.exit_code)
    except StoreFailure as error:
        return _report(str(error), 3)
    except BrokenPipeError:
        discard(sys.stdout)
        return 0
    except OSError as error:
        return _report(f"{error.filename or 'this machine'}: {error.strerror or error}", 3)
    except KeyboardInterrupt:
        return _report("interrupted; the next push sends the pending batches", 130)


def _report(message: str, code: int) -> int:
    print(f"uploader: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
