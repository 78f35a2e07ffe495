"""What is wrong with a block, found without running it: commands, keys and syntax, and whether it is run or marked."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from keras_matrix.runner.errors import RunnerError
from keras_matrix.runner.matrix import prices
from keras_matrix.runner.matrix.reader import expand, parse
from tests.docs.blocks import IN_PART, NOT_RUN, Block, read
from tests.docs.shell import commands, problem, runnable, statements

PRICE_KEYS = {"machines", "electricity"}
MATRIX_KEYS = {"version", "defaults", "backends", "cells", "tasks", "python", "budget"}
# What completes a part of a matrix file that has none of these keys.
REST = {
    ("version",): "version: 1",
    ("backends", "tasks"): "backends: [tensorflow, jax, torch]",
    ("cells", "tasks"): "cells: [{workload: mnist_mlp}]",
}
CRON = re.compile(r"\w+=.*|([\d*,/-]+\s+){5}\S.*|@\w+\s+\S.*|#.*|")


def of_page(page: str, text: str) -> list[str]:
    """Return every problem of a page that shows without running anything."""
    blocks, problems = read(page, text)
    return problems + [one for block in blocks for one in of_block(block)]


def of_block(block: Block) -> Iterator[str]:
    """Yield what is wrong with a block."""
    if block.is_shell:
        yield from _of_shell(block)
    elif block.language in CHECKS and block.mark != NOT_RUN:
        try:
            CHECKS[block.language](block)
        except (ValueError, SyntaxError, RunnerError, yaml.YAMLError, configparser.Error) as error:
            yield block.problem(f"{error}: correct it, or mark it: <!-- {NOT_RUN}: REASON -->")


def _of_shell(block: Block) -> Iterator[str]:
    found = [(line, words) for line, one in statements(block.commands) for words in commands(one)]
    if block.language == "inline":  # often the beginning of a command
        found = [(line, tuple(word for word in words if word != "...")) for line, words in found]
    for line, words in found:
        message = problem(words)
        if message and not (block.language == "inline" and re.search("are required|expected one argument", message)):
            yield block.problem(f"{' '.join(words)}: {message}: correct the command", line)
            return
    others = [one for one in found if not runnable(one[1])] if block.language != "inline" else []
    if block.mark is None and others:
        way = f"{IN_PART}: what the others need" if len(others) < len(found) else f"{NOT_RUN}: what it needs"
        line, words = others[0]
        yield block.problem(f"no test runs `{' '.join(words)}`: put <!-- {way} --> directly above the fence", line)
    if block.mark == IN_PART and len(others) in (0, len(found)):
        yield block.problem(f"no test runs any of it: {NOT_RUN}" if others else "all of it is run: remove the mark", -2)


def _of_yaml(block: Block) -> None:
    content = yaml.safe_load(block.text)
    keys = set(content) if isinstance(content, dict) else set()
    if isinstance(content, list) or (keys and keys <= MATRIX_KEYS):
        _of_matrix(block, keys)
    elif keys and keys <= PRICE_KEYS:
        prices.parse(block.page, ("\n" * (block.line - 1) + block.text).encode())
    elif keys & {"jobs", "runs"}:
        _of_workflow(content)
    elif not ({"apiVersion", "kind"} <= keys or "services" in keys):
        keys_shown = ", ".join(map(str, keys))
        raise ValueError(f"keys of no matrix, prices, workflow, compose or Kubernetes file: {keys_shown or block.text}")


def _of_matrix(block: Block, keys: set[str]) -> None:
    """Load a matrix file by its own reader, completed, with the line numbers of the page."""
    head = "\n" * (block.line - 1) if keys else "\n" * (block.line - 2) + "cells:\n"
    present = keys or {"cells"}
    rest = [line for names, line in REST.items() if not present & {*names}]
    expand(parse(Path(block.page), "\n".join([head + block.text, *rest, ""]).encode()))


def _of_workflow(workflow: dict[Any, Any]) -> None:
    """A GitHub workflow or a composite action: each step does one thing, by valid commands."""
    for job in workflow.get("jobs", {"": workflow.get("runs")}).values():
        _require("runs" in workflow or "runs-on" in job or "uses" in job, "a job has no `runs-on`")
        for step in job.get("steps", []):
            _require(("uses" in step) != ("run" in step), f"a step has either `uses` or `run`: {step}")
            for _, statement in statements(re.sub(r"\$\{\{.*?\}\}", "PLACEHOLDER", step.get("run", ""))):
                for words in commands(statement):
                    _require(not (wrong := problem(words)), f"{' '.join(words)}: {wrong}")


def _of_crontab(block: Block) -> None:
    for line in block.text.splitlines():
        _require(CRON.fullmatch(line) is not None, f"not a line of a crontab: {line}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


CHECKS: dict[str, Callable[[Block], object]] = {
    "yaml": _of_yaml,
    "python": lambda block: compile("\n" * (block.line - 1) + block.text, block.page, "exec"),
    "json": lambda block: json.loads(block.text),
    "toml": lambda block: tomllib.loads(block.text),
    "ini": lambda block: configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text),
    "crontab": _of_crontab,
}
