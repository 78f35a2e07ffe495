"""The checks of the documentation's blocks find what is wrong in synthetic pages, and accept what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import read
from tests.docs.checks import of_page
from tests.docs.sandbox import run_page


def fenced(language: str, *lines: str, mark: str = "") -> str:
    """A page with one block; the first line of the block is line 4 if there is a mark, and otherwise line 3."""
    return "\n".join(["text", *([mark] if mark else []), f"```{language}", *lines, "```", ""])


WORKFLOW = ("jobs:", "  all:", "    runs-on: ubuntu-latest", "    steps:")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (fenced("", "ls"), "p.md:2: the language of a block must be one of"),
        (fenced("bash", "ls"), "got bash"),
        ("text\n\n    ls\n", "p.md:3: an indented block has no language"),
        (fenced("sh", "runner check"), "p.md:3: no test runs `runner check`: put <!-- not run: what it needs -->"),
        (fenced("sh", "ls", "runner check"), "p.md:4: no test runs `runner check`: put <!-- run in part:"),
        (fenced("sh", "make test", mark="<!-- not run -->"), "p.md:2: a mark states its reason"),
        (fenced("sh", "make test", mark="<!-- not run: -->"), "p.md:2: a mark states its reason"),
        (fenced("sh", "ls", mark="<!-- run in part: x -->"), "p.md:2: all of it is run: remove the mark"),
        (fenced("sh", "make test", mark="<!-- run in part: x -->"), "no test runs any of it: not run"),
        ("<!-- not run: x -->\n\n```sh\nrunner plan\n```", "p.md:1: a mark belongs directly above the fence"),
        (fenced("sh", "runner nothing"), "COMMAND: must be one of"),
        (fenced("sh", "ls | runner plan --colour"), "runner plan --colour: unrecognized arguments: --colour"),
        (fenced("sh", "if ! runner show; then ls; fi"), "the following arguments are required: CELL"),
        (fenced("sh", "X=1 runner plan \\", "    --repeats many >plan.txt"), "p.md:3: runner plan --repeats many"),
        (fenced("console", "output", "$ uploader pusch"), "p.md:4: uploader pusch: argument COMMAND: invalid choice"),
        (fenced("sh", "python -m keras_matrix.uploader import"), "the following arguments are required"),
        (fenced("sh", "ci/nothing"), "ci/nothing does not exist"),
        (fenced("sh", "ci/images --tpu"), "ci/images has no option --tpu"),
        (fenced("sh", "ci/throttle --iops 200 -- runner stalls --x"), "runner stalls --x"),
        (fenced("sh", "lab/run nothing"), "lab/nothing.py does not exist"),
        (fenced("sh", "make bnch"), "the Makefile has no bnch"),
        (fenced("sh", "make bench ARGS='--repeat-all'"), "--repeat-all"),
        (fenced("sh", "docker compose run --rm tf-tpu"), "compose.yaml has no service tf-tpu"),
        (fenced("sh", "docker compose up kibana"), "compose.yaml has no service kibana"),
        (fenced("sh", "docker compose --profile nothing up"), "compose.yaml has no profile nothing"),
        (fenced("sh", "docker compose run --rm jax-cpu plan --x"), "jax-cpu plan --x: unrecognized arguments: --x"),
        ("Call `runner repport` for the report.", "p.md:1: runner repport: COMMAND: must be one of"),
        (fenced("yaml", "cells:", "  - workload: lstm", "    batch: 3"), "p.md:5: cells[0].batch: unknown key"),
        (fenced("yaml", "- {workload: lstn}"), "p.md:3: cells[0].workload: must be a workload"),
        (fenced("yaml", "version: 1", "budget: x"), "p.md:4: budget"),
        (fenced("yaml", "machines: {a: 0.1}"), "p.md:3: machines.a: must have a currency"),
        (fenced("yaml", "wrap: [perf]"), "keys of no matrix, prices, workflow, compose or Kubernetes file: wrap"),
        (fenced("yaml", *WORKFLOW, "      - run: runner --x"), "runner --x: unrecognized arguments: --x"),
        (fenced("yaml", *WORKFLOW, "      - name: nothing"), "a step has either `uses` or `run`"),
        (fenced("json", "[1, ...]"), "p.md:3: Expecting value"),
        (fenced("toml", "a ="), "p.md:3: Invalid value"),
        (fenced("ini", "a"), "p.md:3: File contains no section headers"),
        (fenced("crontab", "17 2 * *"), "not a line of a crontab: 17 2 * *"),
        (fenced("python", "x ="), "p.md:3: invalid syntax (p.md, line 3)"),
    ],
)
def test_what_is_wrong_in_a_page_is_named_with_its_line(page: str, expected: str) -> None:
    [found] = of_page("p.md", page)
    assert expected in found


@pytest.mark.parametrize(
    "page",
    [
        fenced("sh", "runner plan --json | head >plan.txt  # a run's", "cat <<'END' >x", "runner nothing", "END"),
        fenced("sh", "for f in 1 2; do", "    if true; then runner plan; fi", "done"),
        fenced("sh", 'sort <<<"a"', "ls 2>/dev/null && (cd matrices; ls)"),
        fenced("sh", "runner compare BASE NEW", mark="<!-- not run: placeholders -->"),
        fenced("sh", "runner plan", "runner check", mark="<!-- run in part: the other measures -->"),
        fenced("console", "$ runner plan", "runner nothing"),
        fenced("text", "runner nothing"),
        fenced("yaml", "defaults: {repeats: auto}", "budget: 60"),
        fenced("yaml", *WORKFLOW, "      - run: make test ARGS=${{ inputs.arguments }}"),
        "- an item\n\n    with more text\n\n!!! note\n\n    text\n",
        "`runner report --publish` writes it; `uploader push ...` and `runner COMMAND --help` too.",
    ],
)
def test_a_page_without_mistakes_passes(page: str) -> None:
    assert of_page("p.md", page) == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (fenced("sh", "runner show jax:lstm", "ls"), "p.md:3: exit code 2"),
        (fenced("sh", "cd nowhere", "runner list"), "cd: nowhere: No such file or directory"),
        (fenced("sql", "SELECT nothing FROM cells"), "uploader: --results: must be a folder"),
        (fenced("python", "x = 1", "x.y"), 'page_p.py", line 4'),
        (fenced("python", "def build():", "    raise ValueError('no model')"), "ValueError: no model"),
    ],
)
def test_what_fails_in_a_page_is_shown_with_its_exit_code(tmp_path: Path, page: str, expected: str) -> None:
    [found] = run_page(read("p.md", page)[0], tmp_path)
    assert expected in found


@pytest.mark.process
def test_blocks_of_a_page_are_one_session_in_its_folder(tmp_path: Path) -> None:
    """A block with a title is a file, what one block writes another reads, and the shell is a complete one."""
    page = (
        fenced('yaml title="matrix.yaml"', "version: 1", "backends: [jax]", "cells: [{workload: lstm}]")
        + fenced("sh", "mkdir sub", "cd sub", "for f in 1 2", "do runner plan --matrix ../matrix.yaml >$f", "done")
        + fenced("sh", "runner check", "grep lstm sub/2 | head -1", mark="<!-- run in part: the other measures -->")
        + fenced("sh", "runner selftest", "exit 1", mark="<!-- not run: measures -->")
        + fenced("python", "from pathlib import Path")
        + fenced("python", "assert 'lstm' in Path('sub/1').read_text()")
    )
    assert run_page(read("p.md", page)[0], tmp_path) == []
