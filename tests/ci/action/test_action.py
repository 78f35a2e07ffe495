"""action.yml, its example workflows and those of this project: scripts are safe, tokens can do little."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ACTIONS = ("action.yml", "ci/action/comment/action.yml")
EXAMPLES = ("docs/examples/github/benchmark.yml", "docs/examples/github/benchmark-comment.yml")
WORKFLOWS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github" / "workflows").iterdir())
SCRIPTS = ("ci/action/environments", "ci/action/measure", "ci/action/verdict", "ci/action-runner")
STARTS = True  # what YAML 1.1 reads for the key `on`
COMMIT = re.compile(r"[\w./-]+@[0-9a-f]{40}")
# The jobs that may write, and what: images to the registry, with a signed statement of their origin; the site.
WRITING = {
    ".github/workflows/images.yml": {"image": {"packages", "id-token", "attestations"}, "tag": {"packages"}},
    ".github/workflows/pages.yml": {"publish": {"pages", "id-token"}},
    ".github/workflows/release.yml": {
        "index": {"id-token"},  # trusted publishing: no stored password
        "images": {"packages", "id-token", "attestations"},
        "release": {"contents"},
    },
}
OURS = re.compile(r"OWNER/keras-benchmark-matrix(/ci/action/comment)?@v0.1")


def read(path: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return found


def steps(path: str) -> list[dict[str, Any]]:
    about = read(path)
    groups = [about["runs"]] if "runs" in about else about["jobs"].values()
    return [step for group in groups for step in group.get("steps", [])]


@pytest.mark.parametrize("path", ACTIONS)
def test_every_input_is_described_and_used(path: str) -> None:
    text, inputs = (ROOT / path).read_text(encoding="utf-8"), read(path)["inputs"]
    assert {name for name in inputs if not inputs[name].get("description")} == set()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(inputs)


def test_documentation_lists_every_input_with_its_default() -> None:
    text = (ROOT / "docs" / "github-actions.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `([\w-]+)` \|(?: `(.*?)`)? \|", text, flags=re.M))
    defaults = {name: one["default"] for name, one in read("action.yml")["inputs"].items()}
    assert {name: table.get(name) for name in defaults} == defaults


@pytest.mark.parametrize("path", [*ACTIONS, *EXAMPLES, *WORKFLOWS])
def test_scripts_contain_no_expression_which_could_inject_commands(path: str) -> None:
    """An expression is replaced in the script's text before bash reads it: values come through `env`.

    Mutation: `run: echo ${{ github.head_ref }}` in a workflow.
    """
    assert [step["run"] for step in steps(path) if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("path", [*ACTIONS, *EXAMPLES, *WORKFLOWS])
def test_other_actions_are_pinned_to_a_commit(path: str) -> None:
    """Mutation: `actions/checkout@v4` in a workflow."""
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert [name for name in used if not (COMMIT.fullmatch(name) or OURS.fullmatch(name))] == []


def test_actions_in_the_documentation_are_pinned_to_a_commit() -> None:
    """Mutation: `actions/checkout@v4` in docs/nightly.md."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    used = [name for page in pages for name in re.findall(r"\buses: (\S+)", page.read_text(encoding="utf-8"))]
    assert len(used) > 2
    assert [name for name in used if not (COMMIT.fullmatch(name) or OURS.fullmatch(name))] == []


@pytest.mark.parametrize(("path", "jobs"), [(path, WRITING.get(path, {})) for path in WORKFLOWS])
def test_a_workflow_can_only_read_and_only_listed_jobs_can_write(path: str, jobs: dict[str, set[str]]) -> None:
    """Mutation: `packages: write` for the complete workflow of the images, or `contents: write` for a job."""
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    granted = {
        name: {key for key, value in job["permissions"].items() if value == "write"}
        for name, job in workflow["jobs"].items()
        if "permissions" in job
    }
    assert granted == jobs
    assert "pull_request_target" not in workflow[STARTS]
    if "pull_request" in workflow[STARTS]:
        assert jobs == {}
        assert "secrets." not in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", WORKFLOWS)
def test_a_checkout_leaves_no_token_for_later_steps(path: str) -> None:
    """Mutation: a checkout without `persist-credentials: false`."""
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert {step.get("with", {}).get("persist-credentials") for step in checkouts} == {False}


def test_workflow_that_runs_a_pull_requests_code_can_only_read() -> None:
    workflow = read(EXAMPLES[0])
    assert workflow[STARTS] == {"pull_request": None}
    assert workflow["permissions"] == {"contents": "read"}
    assert [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job] == []
    assert steps(EXAMPLES[0])[0]["with"]["persist-credentials"] is False
    assert "secrets." not in (ROOT / EXAMPLES[0]).read_text(encoding="utf-8")


def test_workflow_that_can_write_runs_only_the_comment_action() -> None:
    workflow = read(EXAMPLES[1])
    assert workflow[STARTS] == {"workflow_run": {"workflows": [read(EXAMPLES[0])["name"]], "types": ["completed"]}}
    assert workflow["permissions"] == {}
    [job] = workflow["jobs"].values()
    assert job["permissions"] == {"actions": "read", "pull-requests": "write"}
    assert [step["uses"].partition("@")[0] for step in job["steps"]] == [
        "OWNER/keras-benchmark-matrix/ci/action/comment"
    ]


def test_comments_of_forks_with_equal_branch_names_do_not_cancel_each_other() -> None:
    group = read(EXAMPLES[1])["concurrency"]["group"]
    run = "github.event.workflow_run"
    assert re.findall(r"\$\{\{ (.*?) \}\}", group) == [f"{run}.head_repository.full_name", f"{run}.head_branch"]


def test_exit_code_1_has_the_same_meaning_on_every_page() -> None:
    meaning = re.compile("has no figure on one side, or fails in more (of its repeats in|repeats of) ")
    pages = ("ci/action/verdict", "docs/github-actions.md", "docs/comparing.md", "docs/tutorials/compare-in-ci.md")
    assert [page for page in pages if not meaning.search(" ".join((ROOT / page).read_text("utf-8").split()))] == []


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_set_only_inputs_that_the_action_has(path: str) -> None:
    for step in steps(path):
        if found := OURS.fullmatch(step["uses"]):
            inputs = read(f"{(found[1] or '').lstrip('/')}/action.yml".lstrip("/"))["inputs"]
            assert set(step.get("with", {})) <= set(inputs)


@pytest.mark.process
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_valid_and_executable(name: str) -> None:
    script = ROOT / name
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if shutil.which("shellcheck"):  # ci/lint runs it, too
        assert subprocess.run(["shellcheck", "--severity=warning", script], check=False).returncode == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "undecided", "beyond", "ended", "annotation"),
    [
        (0, "pass", 0, 0, "::notice title=Benchmarks::no worse"),
        (
            1,
            "pass",
            0,
            1,
            "::error title=Benchmarks::not measured: a cell has no figure on one side, or fails in more of ",
        ),
        (
            3,
            "pass",
            0,
            3,
            "::error title=Benchmarks::the infrastructure failed, so that a repeat is pending: see the log",
        ),
        (130, "pass", 0, 130, "::error title=Benchmarks::runner gate ended with exit code 130: see the log"),
        (4, "pass", 0, 4, "::error title=Benchmarks::the head is slower than the base: see the job's summary"),
        (
            5,
            "pass",
            0,
            0,
            "::warning title=Benchmarks::undecided within the budget, which does not fail this job: every ",
        ),
        (5, "fail", 0, 5, "::error title=Benchmarks::undecided within the budget: see the job's summary"),
        (
            5,
            "pass",
            2,
            5,
            "::error title=Benchmarks::undecided within the budget; undecided cells with an estimate beyond",
        ),
        (
            5,
            "fail",
            2,
            5,
            "::error title=Benchmarks::undecided within the budget; undecided cells with an estimate beyond",
        ),
    ],
)
def test_verdict_fails_the_job_by_the_gates_exit_code(
    code: int, undecided: str, beyond: int, ended: int, annotation: str
) -> None:
    environment = {"PATH": "/usr/bin:/bin", "EXIT_CODE": str(code), "UNDECIDED": undecided, "BEYOND": str(beyond)}
    command = [str(ROOT / "ci" / "action" / "verdict")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == ended
    assert done.stdout.startswith(annotation)


@pytest.mark.parametrize("name", ["environments", "measure", "verdict"])
def test_step_gives_its_script_every_variable_that_it_reads(name: str) -> None:
    """A script ends at a variable that is not set. Mutation: the step of the verdict does not pass BEYOND."""
    text = (ROOT / "ci" / "action" / name).read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    read_there = set(re.findall(r"\$\{?#?([A-Z][A-Z_]+)", code))
    of_the_runner = {
        variable for variable in read_there if variable.startswith(("GITHUB_", "RUNNER_", "BASH_", "HOME", "PATH"))
    }
    [env] = [set(step["env"]) for step in steps("action.yml") if step.get("run", "").endswith(f'ci/action/{name}"')]
    assert read_there - of_the_runner == env


def test_outputs_that_the_action_uses_are_written_by_its_scripts() -> None:
    used = re.findall(
        r"steps\.(environments|measure)\.outputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")
    )
    assert len(used) >= 10
    for step, name in used:
        assert f"output {name} " in (ROOT / "ci" / "action" / step).read_text(encoding="utf-8")
