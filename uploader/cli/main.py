"""The command `uploader`: finds the command's file, parses, runs it, turns errors into one message and an exit code.

A command is a module of this package with `NAME`, `HELP`, `configure(parser)` and `run(args) -> exit code`, listed in
`COMMANDS`. Nothing heavy is imported until a command runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from records.store import StoreFailure
from uploader.cli import import_, init, migrate, push, query, schema, status, verify
from uploader.errors import UploadError

COMMANDS = (push, init, status, migrate, verify, query, import_, schema)
DESCRIPTION = """Put records where dashboards read them, each row exactly once: Parquet files beside the results (the
default, nothing to start) or BigQuery."""
EPILOG = """addresses: local (results/warehouse), local:FOLDER, bigquery://PROJECT.DATASET

exit codes: 0 all is there, 1 something was set aside or differs, 2 bad input, 3 the warehouse or the outbox cannot be
used for now (what is pending stays pending), 130 interrupted"""


def parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    top = argparse.ArgumentParser(
        prog="uploader",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for module in COMMANDS:
        configured = commands.add_parser(module.NAME, help=module.HELP, description=module.__doc__)
        configured.formatter_class = argparse.RawDescriptionHelpFormatter
        module.configure(configured)
        configured.set_defaults(main=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        args = parser().parse_args(argv)
        return int(args.main(args))
    except UploadError as error:
        return _complain(str(error), error.exit_code)
    except StoreFailure as error:
        return _complain(str(error), 3)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'this machine'}: {error.strerror or error}", 3)
    except KeyboardInterrupt:
        return _complain("stopped; what is pending is sent by the next push", 130)


def _complain(message: str, code: int) -> int:
    print(f"uploader: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
