"""The command `runner`: finds the command's file, parses, runs it, and turns errors into one message and an exit code.

A command is a module of this package with `NAME`, `HELP`, `configure(parser)` and `run(args) -> exit code`, listed in
`COMMANDS`. Nothing heavy is imported until a command runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from keras_matrix.records.store import StoreFailure
from keras_matrix.runner.cli.compare import compare, gate, history, parity, roofline, selftest
from keras_matrix.runner.cli.look import dashboard, list_, plan, report, schema, show, tensorboard
from keras_matrix.runner.cli.machine import check, completion, first_hour
from keras_matrix.runner.cli.measure import fc, fc_flags, fit_batch, run, service, task, trace
from keras_matrix.runner.errors import RunnerError, UsageError
from keras_matrix.runner.measure.seams import Seams

COMMANDS = (
    run,
    plan,
    list_,
    show,
    report,
    check,
    first_hour,
    roofline,
    parity,
    fc,
    fit_batch,
    task,
    trace,
    compare,
    gate,
    history,
    dashboard,
    tensorboard,
    selftest,
    completion,
    schema,
)
VERSION = "0.1.0"
DESCRIPTION = """Measure which Keras 3 backend, device and setting is fastest for your models, and say how sure it is.

Without a command, `run` is meant: `runner --matrix matrix.yaml`."""
EPILOG = """exit codes: 0 all cells ok, 1 some cell not ok, 2 bad input, 3 infrastructure, 130 interrupted;
of gate: 4 regressed, 5 undecided"""


def parser() -> argparse.ArgumentParser:
    """Return the whole command line, for parsing, help and completion."""
    top = argparse.ArgumentParser(
        prog="runner",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"runner {VERSION}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in COMMANDS:
        configured = commands.add_parser(module.NAME, help=module.HELP, description=module.__doc__)
        configured.formatter_class = argparse.RawDescriptionHelpFormatter
        module.configure(configured)
        configured.set_defaults(main=module.run, service=None, in_service=False)
    return top


def main(argv: Sequence[str] | None = None, seams: Seams | None = None) -> int:
    """Run the command line and return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        top = parser()
        args = top.parse_args(_spelled(_with_command(given)))
        args.parser = top
        args.seams = seams or Seams()
        args.given = given
        service.pin(args)
        return int(args.main(args))
    except RunnerError as error:
        return _complain(str(error), error.exit_code)
    except StoreFailure as error:
        return _complain(str(error), 3)
    except BrokenPipeError:
        # The reader of our output has left, as `runner list | head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'this machine'}: {error.strerror or error}; nothing published is lost", 3)
    except KeyboardInterrupt:
        return _complain("stopped", 130)


def _with_command(given: list[str]) -> list[str]:
    """Put `run` where no command is named. Help and version belong to the program itself."""
    from keras_matrix.runner.matrix.grammar import near

    names = {module.NAME for module in COMMANDS}
    if given and (given[0] in names or given[0] in ("-h", "--help", "--version")):
        return given
    if given and not given[0].startswith("-"):
        raise UsageError(f"COMMAND: must be one of {', '.join(sorted(names))}, got {given[0]!r}{near(given[0], names)}")
    return ["run", *given]


def _spelled(given: list[str]) -> list[str]:
    """Return a command line of `runner fc` in the spelling of its flags here; it takes the original's, too."""
    return [fc.NAME, *fc_flags.spelled(given[1:])] if given[0] == fc.NAME else given


def _complain(message: str, code: int) -> int:
    print(f"runner: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
