"""The script of docs/nightly.md runs every step, and reports and returns the first exit code that is not 0.

ci/nightly runs the checks of this project that need hours, and those of a GPU where there is one.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "nightly.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.S)


def night(folder: Path, codes: dict[str, int], script: int = 0) -> tuple[int, list[str]]:
    """Run one of the scripts with commands that note what they were asked and end with these codes."""
    log = folder / "log"
    programs = folder / "bin"
    programs.mkdir()
    for name in ("runner", "curl", "docker"):
        path = programs / name
        cases = "".join(f"  *{word}*) exit {code} ;;\n" for word, code in codes.items())
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\ncase "$*" in\n{cases}esac\n')
        path.chmod(0o755)
    text = blocks("sh")[script]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "WAREHOUSE": "local", "ALERT_URL": "https://hook"}
    environment["NOTIFY"] = "github:octo/bench"
    done = subprocess.run(
        ["sh", "-c", text.replace("/srv/benchmarks", str(folder))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, log.read_text().splitlines()


def test_night_without_failures_runs_every_step_without_an_alert(tmp_path: Path) -> None:
    code, lines = night(tmp_path, {})
    assert code == 0
    assert [line.split()[1] for line in lines] == ["--matrix", "report", "history", "gate"]


@pytest.mark.parametrize(("codes", "code"), [({"gate": 4}, 4), ({"--matrix": 1, "gate": 5}, 1)])
def test_night_with_failures_continues_and_alerts_with_the_first_exit_code(
    tmp_path: Path, codes: dict[str, int], code: int
) -> None:
    ended, lines = night(tmp_path, codes)
    assert ended == code
    assert [line.split()[0] for line in lines] == ["runner"] * 4 + ["curl"]
    assert f"exit code {code}" in lines[-1]
    assert lines[-1].endswith("https://hook")


@pytest.mark.parametrize(
    ("codes", "code"),
    [({}, 0), ({"jax-cpu": 1}, 1), ({"uploader": 3}, 3), ({"jax-cpu": 125, "uploader": 3}, 125)],
)
def test_night_in_containers_uploads_after_any_exit_code_and_returns_the_first(
    tmp_path: Path, codes: dict[str, int], code: int
) -> None:
    ended, commands = night(tmp_path, codes, script=1)
    assert ended == code
    assert commands == [
        "docker compose run --rm -T jax-cpu --matrix matrix.yaml",
        "docker compose run --rm -T uploader push --quiet --to local",
    ]


def test_workflow_has_only_the_permissions_it_needs() -> None:
    [workflow] = (yaml.safe_load(text) for text in blocks("yaml"))
    assert workflow["permissions"] == {"contents": "read", "id-token": "write", "issues": "write"}
    steps = [step.get("run", "") for step in workflow["jobs"]["benchmarks"]["steps"]]
    assert any("--upload bigquery://" in step for step in steps)


def stub(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def steps_of_ci_nightly(folder: Path, nvidia_smi: str) -> list[str]:
    """Run ci/nightly with stubs in place of all that it calls, and return its steps in order."""
    (folder / "ci").mkdir()
    script = folder / "ci" / "nightly"
    script.write_bytes((ROOT / "ci" / "nightly").read_bytes())
    called = re.findall(r"(?:\.?ci|\.venv/bin)/[a-z_-]+", script.read_text(encoding="utf-8"))
    for name in {*called, "bin/make"} - {"ci/nightly"}:
        stub(folder / name, f'echo "{name} $*" >>{folder}/steps')
    stub(folder / "bin" / "nvidia-smi", nvidia_smi)
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(script)], env=environment, check=True, capture_output=True)
    return [line.strip() for line in (folder / "steps").read_text().splitlines()]


def test_ci_nightly_builds_the_gpu_images_before_the_docker_tier_which_tests_them(tmp_path: Path) -> None:
    steps = steps_of_ci_nightly(tmp_path, "exit 9")
    assert steps.index("ci/images --gpu") < steps.index("ci/docker")


@pytest.mark.parametrize(
    ("nvidia_smi", "expected"),
    [
        ("exit 9", ["ci/gpu --device cpu"]),
        ("echo No devices found.", ["ci/gpu --device cpu"]),
        ("echo 'GPU 0: NVIDIA L4 (UUID: GPU-5)'", ["ci/gpu --device cpu", "ci/gpu"]),
    ],
)
def test_ci_nightly_does_the_first_hour_on_the_cpu_and_on_a_gpu_if_there_is_one(
    tmp_path: Path, nvidia_smi: str, expected: list[str]
) -> None:
    steps = steps_of_ci_nightly(tmp_path, nvidia_smi)
    assert [step for step in steps if step.split()[0] == "ci/gpu"] == expected
