"""The command `runner`: imports a command's module, parses, runs it, and turns errors into a message and an exit code.

A command is a row of `COMMANDS` and a module with `configure(parser)` and `run(args) -> exit code`, which is imported
only if that command is called: `runner --help` and each command load nothing that they do not need.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from keras_matrix.records.host.import_path import ignore_other_modules
from keras_matrix.records.host.streams import discard, standard_streams
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import near
from keras_matrix.runner.cli.measure import service
from keras_matrix.runner.errors import RunnerError, UsageError
from keras_matrix.runner.interrupts import process_interruptible
from keras_matrix.runner.service import exit_codes
from keras_matrix.uploader.cli.command_parser import CommandParser

if TYPE_CHECKING:
    from keras_matrix.runner.measure.seams import Seams

# The name of each command: its module, and its line in `runner --help`.
COMMANDS = {
    "run": ("runner.cli.measure.run", "measure the cells of a matrix (the default command)"),
    "quick": ("runner.cli.measure.quick", "measure one model once on each backend: a first look in half a minute"),
    "script": ("runner.cli.measure.script", "measure your own training program, as it is, on each backend"),
    "adopt": ("runner.cli.machine.adopt", "list the Keras programs of a project, and write a first matrix for them"),
    "init": ("runner.cli.machine.init", "write a first matrix.yaml and my_workload.py for the installed backends"),
    "plan": ("runner.cli.look.plan", "print the cells of a matrix and their estimated time"),
    "list": ("runner.cli.look.list_", "list the workloads"),
    "show": ("runner.cli.look.show", "print one cell of a run in detail"),
    "report": ("runner.cli.look.report", "write a run's HTML report again, and print its table"),
    "check": ("runner.cli.machine.check", "examine the machine and report the smallest difference it can show"),
    "first-hour": ("runner.cli.machine.first_hour", "check that measurements on this device can be trusted"),
    "roofline": ("runner.cli.compare.roofline", "compare a run's cells with the machine's measured peak"),
    "parity": ("runner.cli.compare.parity", "check that all backends do the same work"),
    "fc": ("runner.cli.measure.fc", "measure or prove a parallel mode of fully connected layers"),
    "tune": ("runner.cli.measure.tune", "find the fastest setting of a model within a budget"),
    "fit-batch": ("runner.cli.measure.fit_batch", "find the largest batch that fits into a device's memory"),
    "task": ("runner.cli.measure.task", "run one external command, of matrix.yaml or a .cfg file"),
    "trace": ("runner.cli.measure.trace", "record a trace of one cell, or show where its time went"),
    "replay": ("runner.cli.whatif.replay", "replay a training step from its trace, and predict other settings"),
    "optimize": ("runner.cli.whatif.optimize", "search for faster settings of a traced cell, and verify them"),
    "compare": ("runner.cli.compare.compare", "compare two runs, or two environments measured interleaved"),
    "bisect": ("runner.cli.history.bisect", "find the version, day or commit from which on a cell is slower"),
    "explain": ("runner.cli.compare.explain", "explain why a cell is slower than another, from both traces"),
    "reproduce": ("runner.cli.compare.reproduce", "measure a stored cell again, as its record says, and compare"),
    "gate": ("runner.cli.compare.gate", "fail where new is slower than base"),
    "history": ("runner.cli.history.history", "list a cell over all stored sessions, with its change points"),
    "dashboard": ("runner.cli.look.dashboard", "serve the live dashboard"),
    "tensorboard": ("runner.cli.look.tensorboard", "start TensorBoard on the files of --log-dir"),
    "selftest": ("runner.cli.compare.selftest", "measure the matrix against itself: false alarms, detection, cost"),
    "finetune": ("runner.cli.inputs.finetune", "fine-tune on a folder of images, and measure each backend"),
    "stalls": ("runner.cli.inputs.stalls", "measure how long a cell waits for its input, and what would fix it"),
    "costmodel": ("runner.cli.whatif.costmodel", "learn the times of operations from traces, or show such a model"),
    "make-images": ("runner.cli.inputs.make_images", "write a data set of realistic JPEG files"),
    "convert": ("runner.cli.inputs.convert", "convert a folder of JPEG files into TFRecord or ArrayRecord files"),
    "completion": ("runner.cli.machine.completion", "print a shell's completion script"),
    "schema": ("runner.cli.look.schema", "print the JSON Schema of matrix files"),
}
VERSION = "0.1.0"
DESCRIPTION = """Measure which Keras 3 backend, device and setting is fastest for your models, with intervals.

The default command is `run`: `runner --matrix matrix.yaml`."""
EPILOG = exit_codes.help_text()


def parser(command_names: Collection[str] = COMMANDS.keys()) -> argparse.ArgumentParser:
    """Return the command line; of commands that are not `command_names`, only the names and summaries."""
    top = argparse.ArgumentParser(
        prog="runner",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"runner {VERSION}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=CommandParser)
    for name, (path, summary) in COMMANDS.items():
        if name not in command_names:
            commands.add_parser(name, help=summary)
            continue
        module = import_module(f"keras_matrix.{path}")
        configured = commands.add_parser(name, help=summary, description=module.__doc__)
        configured.formatter_class = argparse.RawDescriptionHelpFormatter
        configured.commands = COMMANDS
        module.configure(configured)
        configured.set_defaults(main=module.run, service=None, in_service=False)
    return top


def main(argv: Sequence[str] | None = None, seams: Seams | None = None) -> int:
    """Run the command line and return the exit code."""
    if argv is None:
        ignore_other_modules()
    arguments = list(sys.argv[1:] if argv is None else argv)
    with standard_streams(own_process=argv is None):
        return _called(arguments, seams, own_process=argv is None)


def _called(arguments: list[str], seams: Seams | None, own_process: bool) -> int:
    """Run a command; return its exit code, or that of its error, whose message is printed."""
    try:
        with process_interruptible() if own_process else contextlib.nullcontext():
            args = parse(arguments)
            from keras_matrix.runner.measure.seams import Seams  # help has ended the program

            args.seams = seams or Seams()
            args.given = arguments
            service.pin(args)
            with _own_children() if own_process else contextlib.nullcontext():
                return int(args.main(args))
    except RunnerError as error:
        return _complain(str(error), error.exit_code)
    except StoreFailure as error:
        return _complain(str(error), exit_codes.INFRASTRUCTURE)
    except BrokenPipeError:
        discard(sys.stdout)  # as in `runner list | head`
        return 0
    except OSError as error:
        advice = "free some space and run the same command again; " if error.errno == errno.ENOSPC else ""
        place = error.filename or "this machine"
        return _complain(
            f"{place}: {error.strerror or error}; {advice}no published record is lost", exit_codes.INFRASTRUCTURE
        )
    except KeyboardInterrupt as stopped:
        return _complain(str(stopped) or "stopped", exit_codes.INTERRUPTED)


@contextlib.contextmanager
def _own_children() -> Iterator[None]:
    """Leave no process that the command of this process has started.

    A cell can end the server that would end what the cell has left: then this process is the parent. Children from
    before its program was started, as after `exec` in a shell, are not its own: then it ends none.
    """
    from keras_matrix.records.host.platform import PLATFORM

    had_children = bool(PLATFORM.children())
    PLATFORM.adopt_orphans()
    try:
        yield
    finally:
        if not had_children:
            PLATFORM.end_children()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments of a command line. Raises `UsageError` for an unknown command."""
    words = _spelled(_with_command(list(arguments)))
    return parser(words[:1]).parse_args(words)


def _with_command(arguments: list[str]) -> list[str]:
    """Insert `run` if no command is named. Help and version belong to the program itself."""
    if arguments and (arguments[0] in COMMANDS or arguments[0] in ("-h", "--help", "--version")):
        return arguments
    if arguments and not arguments[0].startswith("-"):
        commands_text = ", ".join(sorted(COMMANDS))
        raise UsageError(f"COMMAND: must be one of {commands_text}, got {arguments[0]!r}{near(arguments[0], COMMANDS)}")
    return ["run", *arguments]


def _spelled(arguments: list[str]) -> list[str]:
    """Return a command line of `runner fc` in the spelling of its flags; those of the original are accepted, too."""
    if arguments[0] != "fc":
        return arguments
    from keras_matrix.runner.cli.measure.fc_flags import spelled

    return ["fc", *spelled(arguments[1:])]


def _complain(message: str, code: int) -> int:
    print(f"runner: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
