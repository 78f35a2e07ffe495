"""The scripts of docs/nightly.md run every step, and report and return the first exit code that is not 0."""

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
    text = [block for block in blocks("sh") if block.startswith("#!/bin/sh")][script]
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


@pytest.mark.process
def test_night_without_failures_runs_every_step_without_an_alert(tmp_path: Path) -> None:
    code, lines = night(tmp_path, {})
    assert code == 0
    assert [line.split()[1] for line in lines] == ["--matrix", "report", "history", "gate"]


@pytest.mark.process
@pytest.mark.parametrize(("codes", "code"), [({"gate": 4}, 4), ({"--matrix": 1, "gate": 5}, 1)])
def test_night_with_failures_continues_and_alerts_with_the_first_exit_code(
    tmp_path: Path, codes: dict[str, int], code: int
) -> None:
    ended, lines = night(tmp_path, codes)
    assert ended == code
    assert [line.split()[0] for line in lines] == ["runner"] * 4 + ["curl"]
    assert f"exit code {code}" in lines[-1]
    assert lines[-1].endswith("https://hook")


@pytest.mark.process
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
