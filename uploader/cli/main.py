"""The command `uploader`: parses arguments, runs a subcommand, and reports an error as one message and an exit code.

A subcommand is a module of this package with `NAME`, `HELP`, `configure(parser)` and `run(args) -> exit code`, and is
listed in `COMMANDS`. Large dependencies are imported only when a subcommand runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from keras_matrix.records.host.import_path import ignore_other_modules
from keras_matrix.records.host.streams import discard, standard_streams
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import near
from keras_matrix.uploader.cli import import_, init, migrate, push, query, schema, status, verify
from keras_matrix.uploader.cli.command_parser import CommandParser
from keras_matrix.uploader.errors import BadInput, UploadError

COMMANDS = (push, init, status, migrate, verify, query, import_, schema)
DESCRIPTION = """Upload records for dashboards, each row exactly once: to Parquet files next to the results (the
default, which needs no server) or to BigQuery."""
EPILOG = """addresses: local (results/warehouse), local:FOLDER, bigquery://PROJECT.DATASET

exit codes: 0 complete, 1 rows were set aside or differ, 2 bad input, 3 the warehouse or the outbox cannot be used at
the moment (pending batches stay pending), 130 interrupted"""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser with all subcommands."""
    top = argparse.ArgumentParser(
        prog="uploader",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=CommandParser
    )
    for module in COMMANDS:
        configured = commands.add_parser(module.NAME, help=module.HELP, description=module.__doc__)
        configured.commands = [one.NAME for one in COMMANDS]
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
        names = [module.NAME for module in COMMANDS]
        if words and not words[0].startswith("-") and words[0] not in names:
            raise BadInput(f"COMMAND: must be one of {', '.join(names)}, got {words[0]!r}{near(words[0], names)}")
        args = parser().parse_args(words)
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
