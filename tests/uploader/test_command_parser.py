"""What a command does not know is refused with its own usage and a near name."""

from __future__ import annotations

import pytest

from keras_matrix.records.text import near
from keras_matrix.runner.cli.main import main as runner


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        (
            ["--backend", "jax", "plan"],
            "usage: runner run ",
            "runner run: error: unrecognized arguments: plan; plan is a command and comes first: "
            "runner plan --backend jax",
        ),
        (
            ["trace", "jax:lstm", "--htlm", "x"],
            "usage: runner trace ",
            "runner trace: error: unrecognized arguments: --htlm x; did you mean --html?",
        ),
        (["--matrx", "m"], "usage: runner run ", "unrecognized arguments: --matrx m; did you mean --matrix?"),
        (["report", "--publihs=x"], "usage: runner report ", "--publihs=x; did you mean --publish?"),
        (["plan", "extra"], "usage: runner plan ", "runner plan: error: unrecognized arguments: extra"),
    ],
)
def test_unknown_argument_gets_the_usage_of_its_command(
    words: list[str], usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        runner(words)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(usage)
    assert message in printed


def test_name_that_is_similar_to_none_gets_no_advice() -> None:
    assert near("zebra", ["matrix", "results"]) == ""
    assert near("x" * 100, ["x" * 99]) == ""


@pytest.mark.parametrize("words", [("--upload", "{}"), ("--upload={}",), ("--to", "{}")])
def test_refused_argument_does_not_show_a_password(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` sends nothing, so that it has no such option."""
    with pytest.raises(SystemExit):
        runner(["plan", *(word.format("bigquery://me:PASS=WORD@host.data") for word in words)])
    message = capsys.readouterr().err
    assert f"unrecognized arguments: {words[0].partition('=')[0]}" in message
    assert "(an address with a user or a password)" in message
    assert "WORD" not in message
