"""Emulate GitHub's runner for a composite action: read action.yml and run its steps, each in its own process.

It follows "Metadata syntax for GitHub Actions" and "Contexts" of GitHub's documentation as far as our actions go:
inputs with defaults, `if` with `==`, `!=` and `&&`, `${{ }}` with `inputs`, `steps`, `github` and `runner`, the files
GITHUB_OUTPUT, GITHUB_STEP_SUMMARY, GITHUB_ENV and GITHUB_PATH, and bash as GitHub starts it. Of other actions it
emulates setup-python (a Python that `ci/pythons` finds) and upload-artifact (a folder). Everything else is an error
with a message, never left out.

It does not know: containers, services, caches, `always()`, tokens, the limits of GitHub's machines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
NAMES = re.compile(r"(inputs|github|runner)\.([\w-]+)|steps\.([\w-]+)\.outputs\.([\w-]+)")
CONDITION = re.compile(r"(\S+)\s*(==|!=)\s*'([^']*)'")
KEYS = {"id", "name", "if", "shell", "run", "env", "uses", "with"}
BASH = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"]
# What GitHub's runner sets itself, and what would carry a development environment into the job.
OURS = re.compile(r"GITHUB_|RUNNER_|PYTHON(PATH|HOME)$|VIRTUAL_ENV|CONDA_")


class UnsupportedFeature(Exception):
    """The action uses what this emulator does not support, or is used wrongly."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How the job ended: the exit code of the step that failed, or 0; its outputs, summary and artifacts by name."""

    code: int
    outputs: Mapping[str, str]
    summary: str
    artifacts: Mapping[str, Path]


@dataclass(slots=True)
class Job:
    """A job with one action: its folders, and what its steps have written so far."""

    action: Path
    workspace: Path
    folder: Path
    inputs: Mapping[str, str]
    github: Mapping[str, str]
    environment: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)

    @property
    def temporary(self) -> Path:
        """The folder that GitHub's runner empties before and after each job."""
        return self.folder / "temp"

    @property
    def summary(self) -> Path:
        """The file of the job's summary."""
        return self.folder / "summary.md"

    def value(self, name: str) -> str:
        """Return the value of a name in an expression; an output that no step has written is empty, as on GitHub."""
        if not (match := NAMES.fullmatch(name)):
            raise UnsupportedFeature(f"expression {name!r}: only inputs, steps, github and runner are supported")
        context, key, step, output = match.groups()
        if step is not None:
            return self.outputs.get(step, {}).get(output, "")
        values = {"inputs": self.inputs, "github": self.github, "runner": {"temp": str(self.temporary)}}[context]
        if key not in values:
            raise UnsupportedFeature(f"expression {name!r}: there is no such value")
        return values[key]

    def text(self, text: Any) -> str:
        """Return a text with its expressions replaced by their values."""
        return EXPRESSION.sub(lambda match: self.value(match[1]), str(text))

    def condition_is_true(self, condition: str) -> bool:
        """Return whether a step's `if` is true."""
        return all(self._compared(part.strip()) for part in condition.split("&&"))

    def _compared(self, part: str) -> bool:
        if not (match := CONDITION.fullmatch(part)):
            raise UnsupportedFeature(f"if: {part!r}: only comparisons with a text, joined by &&, are supported")
        return (self.value(match[1]) == match[3]) == (match[2] == "==")


def run(action: Path, inputs: Mapping[str, str], workspace: Path, folder: Path, **github: str) -> JobResult:
    """Run a composite action, given its folder, in a checked out repository; `folder` gets all files of the job."""
    about = yaml.safe_load((action / "action.yml").read_text(encoding="utf-8"))
    job = Job(action, workspace, folder, _with_defaults(about["inputs"], inputs, github), github)
    job.environment = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    job.temporary.mkdir(parents=True)
    job.summary.touch()
    code = 0
    for number, step in enumerate(about["runs"]["steps"]):
        if unknown := step.keys() - KEYS:
            raise UnsupportedFeature(f"steps[{number}]: {', '.join(sorted(unknown))}: not supported")
        if job.condition_is_true(step["if"]) if "if" in step else True:
            code = _use(job, step) if "uses" in step else _run(job, step, number)
        if code:
            break
    outputs = {name: job.text(output["value"]) for name, output in about.get("outputs", {}).items()}
    return JobResult(code, outputs, job.summary.read_text(encoding="utf-8"), job.artifacts)


def _with_defaults(
    declared: Mapping[str, Any], inputs: Mapping[str, str], github: Mapping[str, str]
) -> Mapping[str, str]:
    if unknown := inputs.keys() - declared.keys():
        raise UnsupportedFeature(f"inputs: the action has no {', '.join(sorted(unknown))}")
    if missing := [
        name for name, declaration in declared.items() if declaration.get("required") and name not in inputs
    ]:
        raise UnsupportedFeature(f"inputs: required, but not given: {', '.join(missing)}")
    context = Job(Path(), Path(), Path(), {}, github)
    return {
        name: inputs[name] if name in inputs else context.text(declaration["default"])
        for name, declaration in declared.items()
    }


def _run(job: Job, step: Mapping[str, Any], number: int) -> int:
    """Run a step's script as GitHub does, and read what it has written to its files."""
    if step.get("shell") != "bash":
        raise UnsupportedFeature(f"steps[{number}]: shell: only bash is supported, got {step.get('shell')!r}")
    script = job.folder / f"step-{number}.sh"
    script.write_text(job.text(step["run"]), encoding="utf-8")
    files = {name: job.folder / f"{name}-{number}" for name in ("output", "env", "path")}
    for file in files.values():
        file.touch()
    environment = {
        **job.environment,
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(job.action),
        "GITHUB_WORKSPACE": str(job.workspace),
        "RUNNER_TEMP": str(job.temporary),
        "RUNNER_OS": "Linux",
        **{f"GITHUB_{name.upper()}": value for name, value in job.github.items() if name != "token"},
        **{f"GITHUB_{name.upper()}": str(file) for name, file in files.items()},
        "GITHUB_STEP_SUMMARY": str(job.summary),
        **{name: job.text(value) for name, value in step.get("env", {}).items()},
    }
    code = subprocess.run([*BASH, str(script)], cwd=job.workspace, env=environment, check=False).returncode
    job.environment |= written(files["env"].read_text(encoding="utf-8"))
    for folder in files["path"].read_text(encoding="utf-8").splitlines():
        job.environment["PATH"] = f"{folder}:{job.environment['PATH']}"
    if "id" in step:
        job.outputs[step["id"]] = written(files["output"].read_text(encoding="utf-8"))
    return code


def written(text: str) -> dict[str, str]:
    """Return the values in a file such as GITHUB_OUTPUT: `name=value`, or `name<<END` and lines up to END."""
    outputs: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, sign, value = line.partition("=")
        if sign and "<<" not in name:
            outputs[name] = value
        elif "<<" in line:
            name, _, end = line.partition("<<")
            outputs[name] = "\n".join(iter(lambda: next(lines), end))
        else:
            raise UnsupportedFeature(f"output file: must be name=value or name<<END, got {line!r}")
    return outputs


def _use(job: Job, step: Mapping[str, Any]) -> int:
    """Emulate another action."""
    name = step["uses"].partition("@")[0]
    if name not in SUPPORTED:
        raise UnsupportedFeature(f"uses: {step['uses']}: only {', '.join(SUPPORTED)} are supported")
    return SUPPORTED[name](job, {key: job.text(value) for key, value in step.get("with", {}).items()})


def _setup_python(job: Job, inputs: Mapping[str, str]) -> int:
    version = inputs["python-version"]
    listing = subprocess.run([ROOT / "ci" / "pythons", version], capture_output=True, text=True, check=True).stdout
    if not listing:
        raise UnsupportedFeature(f"setup-python: there is no Python {version} with venv here")
    python = Path(listing.split(maxsplit=1)[1].strip())
    folder = job.folder / "python"
    folder.mkdir()
    for name in ("python", "python3"):
        # Not a link: a virtual environment made by it would look for its standard library next to the link.
        (folder / name).write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        (folder / name).chmod(0o755)
    job.environment["PATH"] = f"{folder}:{job.environment['PATH']}"
    return 0


def _upload_artifact(job: Job, inputs: Mapping[str, str]) -> int:
    source, folder = Path(inputs["path"]), job.folder / "artifacts" / inputs["name"]
    if not source.is_dir() or not any(source.iterdir()):
        print(f"::error::no files found at {source}", flush=True)
        return int(inputs.get("if-no-files-found") == "error")
    shutil.copytree(source, folder)
    job.artifacts[inputs["name"]] = folder
    return 0


SUPPORTED: Mapping[str, Callable[[Job, Mapping[str, str]], int]] = {
    "actions/setup-python": _setup_python,
    "actions/upload-artifact": _upload_artifact,
}
