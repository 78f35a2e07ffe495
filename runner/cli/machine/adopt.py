"""List the Keras programs of your project, the backends that each allows, and why; and write a first matrix.yaml.

The project is read, never imported nor run. A program is what builds or loads a Keras model and trains it, or predicts
with it, when it is run: its own modules are followed, and branches that ask for the backend are taken as each backend
takes them. Nothing is overwritten."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from keras_matrix.analysis.programs import LOOP, KerasProgram
from keras_matrix.records.codec import to_json
from keras_matrix.records.text import plural, printable
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.service.adopt import Adopted, read_project, write

SHOWN_USES = 3  # of each set of backends that a program excludes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("path", type=Path, metavar="PATH", help="a project's folder, or one program, such as train.py")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the program")
    parser.add_argument("--list", action="store_true", dest="only_list", help="only list; write no matrix")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the programs, and write the matrix."""
    from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_backends

    adopted = read_project(args.path, args.words, installed_backends(Interpreter(sys.executable)))
    is_written = adopted.matrix_text is not None and not args.only_list
    if not args.json:
        print("\n".join(_lines(adopted)))
    if is_written:
        write(adopted)
    if args.json:
        print(document(_fields(adopted) | {"written": str(adopted.matrix) if is_written else None}))
    elif is_written:
        print(f"wrote {adopted.matrix}, for {', '.join(adopted.backends)}")
        print(f"measure with: runner --matrix {shlex.quote(str(adopted.matrix))}")
    return 0 if adopted.matrix_text is not None else 1


def _lines(adopted: Adopted) -> list[str]:
    count, files = len(adopted.programs), plural(adopted.sources, "file")
    lines = [f"{plural(count, 'program')} of Keras in {adopted.folder} ({files} read, none run)", ""]
    rows = [["program", "measured", "backends"]]
    for program in adopted.programs:
        kind = "own loop" if program.call.kind == LOOP else program.call.kind
        rows.append([program.path, f"{kind} {program.call.place}", ", ".join(program.backends) or "none"])
    heading, *program_lines = columns(rows)
    lines.append(printable(heading))
    for program, line in zip(adopted.programs, program_lines, strict=True):
        lines.append(printable(line))
        lines += [printable(f"  {text}", " ") for text in _details(program, adopted)]
    lines += [printable(f"not read: {path}: {reason}", " ") for path, reason in sorted(adopted.unread.items())]
    if (environment := adopted.environment) is not None:
        use_text = (
            printable(environment.problem, " ")
            or f"is the cells' ({', '.join(environment.backends) or 'backends unknown'})"
        )
        lines.append(f"environment: {environment.name} {use_text}")
    return [*lines, ""]


def _details(program: KerasProgram, adopted: Adopted) -> list[str]:
    """Return what restricts a program, and why it is not measured as it is."""
    uses: dict[tuple[str, ...], list[str]] = {}
    for found in program.restrictions:
        uses.setdefault(found.backends, []).append(f"{found.use} ({found.place})")
    lines = []
    for backends, texts in uses.items():
        more = f", and {len(texts) - SHOWN_USES} more" if len(texts) > SHOWN_USES else ""
        lines.append(f"not on {', '.join(backends)}: {', '.join(texts[:SHOWN_USES])}{more}")
    if program.sets_backend:
        lines.append(f"sets KERAS_BACKEND itself ({program.sets_backend}): each cell's own backend is used instead")
    if reason := adopted.why_not.get(program.path):
        lines.append(f"not in the matrix: {reason}")
    return lines


def _fields(adopted: Adopted) -> dict[str, object]:
    programs = [
        {
            "path": program.path,
            "backends": list(program.backends),
            "calls": to_json(list(program.calls)),
            "required_arguments": list(program.required),
            "restrictions": to_json(list(program.restrictions)),
            "not_in_the_matrix": adopted.why_not.get(program.path),
        }
        for program in adopted.programs
    ]
    environment = to_json(adopted.environment)
    return {"folder": str(adopted.folder), "programs": programs, "environment": environment, "unread": adopted.unread}
