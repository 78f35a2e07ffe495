"""Contents of the images that no lock lists, and the check of the Dockerfile."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
ROOMS = ("records", "models", "analysis", "uploader", "dashboards", "runner")
# Imported by the packages of the programs, or in none of the images.
BROUGHT = {
    "absl",
    "ai_edge_litert",
    "github",
    "huggingface_hub",
    "markupsafe",
    "ml_dtypes",
    "onnxruntime",
    "pytest",
    "requests",
}


def stage(name: str) -> str:
    """The instructions of one stage, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text(encoding="utf-8"))
    stages = re.split(r"(?m)^FROM ", text)
    return next(found for found in stages if re.match(rf"\S+ AS {name}\n", found))


def test_only_torch_gpu_has_the_compiler_for_tritons_launcher() -> None:
    installs = [line for line in stage("image").splitlines() if "apt-get install" in line]
    assert len(installs) == 1
    assert re.search(r'if \[ "\$\{SERVICE\}" = torch-gpu \]; then .* gcc libc6-dev python3-dev .* fi$', installs[0])


def imported(source: str) -> set[str]:
    """The first names of the modules that a source imports, lazily or not."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found


def test_programs_that_write_byte_code_import_every_package_that_the_project_does() -> None:
    """Mutation: a program lacks a package, whose modules each process of an image then compiles."""
    programs = runpy.run_path(str(DOCKERFILE.with_name("byte_code.py")))["PROGRAMS"]
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(sources) > 500
    used = {name for path in sources for name in imported(path.read_text(encoding="utf-8"))}
    foreign = used - set(sys.stdlib_module_names) - {"keras_matrix"}
    assert foreign - {name for _, program in programs.values() for name in imported(program)} == BROUGHT


HADOLINT = Path(sys.executable).parent / "hadolint"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
IGNORED = [match.span() for match in re.finditer(r"^# hadolint ignore=.*\n", TEXT, flags=re.M)]


def problems(text: str, folder: Path) -> list[str]:
    """Return the rules of hadolint that a Dockerfile violates, as ci/lint finds them."""
    path = folder / "Dockerfile"
    path.write_text(text)
    done = subprocess.run([HADOLINT, "--no-color", path], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(done.stdout)
    return re.findall(r"^\S+?:\d+ (\w+)", done.stdout, flags=re.M)


@pytest.mark.process
@pytest.mark.parametrize("span", IGNORED, ids=str)
def test_every_exception_from_hadolint_is_needed(tmp_path: Path, span: tuple[int, int]) -> None:
    """Mutation: an exception in front of an instruction that violates nothing."""
    assert problems(TEXT, tmp_path) == []
    assert problems(TEXT[: span[0]] + TEXT[span[1] :], tmp_path) == ["DL3008"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("instruction", "rule"), [("USER root", "DL3002"), ("RUN sudo true", "DL3004"), ("FROM debian", "DL3006")]
)
def test_hadolint_refuses_what_weakens_an_image(tmp_path: Path, instruction: str, rule: str) -> None:
    """Mutation: ci/lint runs hadolint with --no-fail."""
    assert rule in problems(f"FROM debian:bookworm-slim\n{instruction}\n", tmp_path)
    lint = (DOCKERFILE.parents[1] / "ci" / "lint").read_text(encoding="utf-8")
    assert "xargs -0 .venv/bin/hadolint || wrong=1" in lint
