"""The commands of a shell block: taken apart, and checked by the parsers of the programs themselves.

Words in capitals such as RUN or PROJECT.DATASET, and the id of a run, are placeholders: a command with one is checked
and not run. Of programs that are not ours only bash checks the syntax.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import yaml

from keras_matrix.runner.cli.main import parse
from keras_matrix.runner.errors import RunnerError
from keras_matrix.uploader.cli.main import parser as uploader_parser
from tests.docs.blocks import ROOT

Words = tuple[str, ...]
PLACEHOLDER = re.compile(r"(?<![\w$])[A-Z][A-Z_]+(?![\w=])|\d{8}T\d{6}Z-\w{6}")
HERE_DOCUMENT = r"(?<!<)<<-?(?!<)\s*"
BEFORE_A_COMMAND = {"!", "{", "do", "else", "elif", "exec", "if", "sudo", "then", "time", "until", "while"}
# Options of docker compose.
VALUE_FOLLOWS = {"-e", "-f", "-v", "--entrypoint", "--file", "--profile", "--signal", "--volume"}
# Programs that a block may use besides ours and still be run.
PLAIN = {".", "cat", "cd", "cp", "diff", "echo", "export", "grep", "head", "ls", "mkdir", "sort", "tail", "true"}
PLAIN |= {"for", "done", "fi"}  # keywords
# Commands that work with pretended cells within seconds, and the options with which they do not.
RUN = {
    "run": {"--executor", "--upload"},
    "fc": {"--network", "--prove", "--export-csv"},
    "compare": {"--base", "--new", "--base-env", "--new-env", "--machines"},
    "history": {"--results", "--calibrate"},
    **{
        name: set[str]()
        for name in ("init", "quick", "plan", "list", "show", "report", "trace", "completion", "schema")
    },
}
RUN_OF_UPLOADER = {"init", "push", "query", "status", "verify", "schema"}


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement with its line, from 0; one continues until its quotes and here-documents end."""
    lines = iter(enumerate(text.splitlines()))
    for number, statement in lines:
        while not _ends(statement) and (following := next(lines, None)):
            statement += "\n" + following[1]  # noqa: PLW2901
        yield number, statement


def _ends(statement: str) -> bool:
    if document := re.search(HERE_DOCUMENT + r"['\"]?(\w+)", statement):
        return statement.splitlines()[-1].strip() == document[1]
    try:
        shlex.split(statement.replace("\\\n", " "), comments=True)
    except ValueError:  # an open quote, or a backslash at the end
        return False
    return True


def commands(statement: str) -> Iterator[Words]:
    """Yield the simple commands of a statement, without assignments, keywords and redirections."""
    text = re.sub(HERE_DOCUMENT + ".*", "", statement.replace("\\\n", " "), flags=re.DOTALL)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if re.fullmatch(r"[();|&]+", word):
            yield from _commands(words)
            words = []
        elif words or not (word in BEFORE_A_COMMAND or re.match(r"\w+=", word)):
            words.append(word)


def _commands(words: list[str]) -> Iterator[Words]:
    """Yield a command without redirections, and the one after its `--`."""
    end = next((at for at, word in enumerate(words) if re.fullmatch(r"[<>&]+", word)), len(words))
    words = words[: end - (end < len(words) and words[end - 1] in ("1", "2"))]
    if words:
        yield tuple(words)
        if words[0].startswith(("ci/", "lab/")) and "--" in words:
            yield from _commands(words[words.index("--") + 1 :])


def runnable(words: Words) -> bool:
    """Return whether a command is run in the sandbox."""
    name, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if any(PLACEHOLDER.search(word) for word in rest if " " not in word):
        return False
    if name in ("runner", "keras-matrix"):
        if {"-h", "--help", "--version"} & {*rest}:
            return True
        given = parse(rest).command
        return given in RUN and not RUN[given] & {word.partition("=")[0] for word in rest}
    return name in PLAIN or (name == "uploader" and rest[0] in RUN_OF_UPLOADER and "--to" not in rest)


@cache
def problem(words: Words) -> str | None:
    """Say what is wrong with a command, or None."""
    name, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if name == "python" and len(rest) > 1 and rest[1] in ("keras_matrix.runner", "keras_matrix.uploader"):
        name, rest = rest[1].removeprefix("keras_matrix."), rest[2:]
    elif name == "python" and rest and rest[0].startswith("ci/"):
        name, rest = rest[0], rest[1:]
    if name.startswith(("ci/", ".ci/", "lab/")):
        return _of_script(name, rest)
    if name in ("runner", "keras-matrix"):
        return None if rest and PLACEHOLDER.fullmatch(rest[0]) else _refusal(parse, rest)
    if name == "uploader":
        return _refusal(uploader_parser().parse_args, rest)
    if name == "make":
        return _of_make(rest)
    return _of_compose(rest[1:]) if (name, *rest[:1]) == ("docker", "compose") else None


def _refusal(parsing: Callable[[Words], object], given: Words) -> str | None:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            parsing(given)
    except SystemExit as ended:
        return printed.getvalue().strip().rpartition("error: ")[2] if ended.code else None
    except RunnerError as error:
        return str(error)
    return None


def _of_script(name: str, given: Words) -> str | None:
    path = ROOT / name
    if not path.is_file():
        return f"{name} does not exist"
    if name == "lab/run" and given and not PLACEHOLDER.fullmatch(given[0]):
        module = f"lab/{given[0]}"
        return _of_script(f"{module}/command.py" if (ROOT / module).is_dir() else f"{module}.py", given[1:])
    text = path.read_text(encoding="utf-8")
    if "exec " in text or '"$@"' in text or "arguments+=" in text:  # its options are those of another program
        return None
    own = given[: given.index("--")] if "--" in given else given
    unknown = [word for word in own if word.startswith("--") and word.partition("=")[0] not in text]
    return f"{name} has no option {', '.join(unknown)}" if unknown else None


def _of_make(given: Words) -> str | None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in given:
        name, _, value = word.partition("=")
        if not re.search(rf"^{re.escape(name)}(:| \?=)", text, re.MULTILINE):
            return f"the Makefile has no {name}"
        if name == "ARGS" and "bench" in given and (found := _refusal(parse, tuple(shlex.split(value)))):
            return found
    return None


def _of_compose(given: Words) -> str | None:
    """Check profiles, services, and the arguments of a service that is one of our programs."""
    services = _services()
    profiles = {name for one in services.values() for name in one.get("profiles", [])}
    pairs = list(pairwise(("", *given)))
    if unknown := {word for before, word in pairs if before == "--profile"} - profiles:
        return f"compose.yaml has no profile {', '.join(sorted(unknown))}"
    verb, *named = [word for before, word in pairs if not word.startswith("-") and before not in VALUE_FOLLOWS] or [""]
    if unknown := {*(named[:1] if verb == "run" else named)} - {*services}:
        return f"compose.yaml has no service {', '.join(sorted(unknown))}"
    if verb != "run" or not named:
        return None
    arguments = given[given.index(named[0]) + 1 :]
    if named[0] in ("uploader", "report"):
        program = ("uploader",) if named[0] == "uploader" else ("runner", "report", "--merge")
        return problem((*program, *arguments))
    return problem(("runner", *arguments)) if named[0].endswith(("-cpu", "-gpu", "-tpu")) else None


@cache
def _services() -> dict[str, Any]:
    files = [yaml.safe_load((ROOT / name).read_text()) for name in ("docker/ray-dashboard.yaml", "compose.yaml")]
    return {name: service for file in files for name, service in file["services"].items()}
