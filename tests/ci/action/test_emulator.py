"""The emulator of GitHub's runner: files of a step, expressions, conditions, and errors for unsupported features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.github import emulator
from ci.github.emulator import UnsupportedFeature

HEAD = """\
inputs: {name: {default: world}, other: {default: ''}}
outputs: {said: {value: "${{ steps.say.outputs.text }}"}}
"""
SAY = """\
runs:
  using: composite
  steps:
    - id: say
      shell: bash
      run: |
        echo "text=hello $NAME" >>"$GITHUB_OUTPUT"
        echo "KEPT=$NAME" >>"$GITHUB_ENV"
        echo "# $NAME" >>"$GITHUB_STEP_SUMMARY"
      env: {NAME: "${{ inputs.name }}"}
    - if: inputs.other != ''
      shell: bash
      run: exit 9
    - shell: bash
      run: echo "$KEPT" >>"$GITHUB_STEP_SUMMARY"; mkdir -p "$RUNNER_TEMP/out"; echo 1 >"$RUNNER_TEMP/out/file"; CODE
    - uses: actions/upload-artifact@abc
      with: {name: files, path: "${{ runner.temp }}/out"}
"""


def run(folder: Path, text: str, inputs: Mapping[str, str] | None = None) -> emulator.JobResult:
    (folder / "action").mkdir()
    (folder / "action" / "action.yml").write_text(HEAD + text)
    return emulator.run(folder / "action", inputs or {}, folder, folder / "job")


@pytest.mark.process
def test_steps_pass_values_through_the_files_of_github(tmp_path: Path) -> None:
    ended = run(tmp_path, SAY.replace("CODE", "true"), {"name": '$(exit 3); "quoted"'})
    name = '$(exit 3); "quoted"'
    assert (ended.code, ended.outputs) == (0, {"said": f"hello {name}"})
    assert ended.summary == f"# {name}\n{name}\n"
    assert [path.name for path in ended.artifacts["files"].iterdir()] == ["file"]


@pytest.mark.process
def test_failed_step_ends_the_job_with_its_code_and_without_the_later_steps(tmp_path: Path) -> None:
    ended = run(tmp_path, SAY.replace("CODE", "(exit 7)"))
    assert (ended.code, ended.artifacts) == (7, {})


@pytest.mark.process
def test_condition_selects_a_step(tmp_path: Path) -> None:
    assert run(tmp_path, SAY.replace("CODE", "true"), {"other": "x"}).code == 9


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{uses: actions/cache@v4}", "uses: actions/cache@v4: only actions/setup-python, actions/upload-artifact"),
        ("{run: 'true'}", "shell: only bash is supported, got None"),
        ("{run: 'true', shell: bash, timeout-minutes: 3}", "timeout-minutes: not supported"),
        ("{run: 'true', shell: bash, if: always()}", "if: 'always()': only comparisons with a text"),
        ("{run: '${{ secrets.x }}', shell: bash}", "expression 'secrets.x': only inputs, steps, github and runner"),
        ("{run: '${{ inputs.absent }}', shell: bash}", "expression 'inputs.absent': there is no such value"),
    ],
)
def test_unsupported_feature_is_an_error_that_names_it(tmp_path: Path, step: str, message: str) -> None:
    with pytest.raises(UnsupportedFeature) as refused:
        run(tmp_path, f"runs:\n  using: composite\n  steps:\n    - {step}\n")
    assert message in str(refused.value)


def test_unknown_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="inputs: the action has no nmae"):
        run(tmp_path, SAY, {"nmae": "x"})


def test_output_of_several_lines_is_read() -> None:
    assert emulator.written("a=1\nb<<END\nx\ny=2\nEND\nc=3\n") == {"a": "1", "b": "x\ny=2", "c": "3"}
