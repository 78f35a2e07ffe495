"""Every environment that a process of a cell is started with has the allowed variables alone, whatever the caller's."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.host.inherited_environment import CREDENTIAL, variables_problem
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process import probe
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.supervise.environment import ALLOWED, cell_environment
from keras_matrix.runner.service.cells import stored_cell
from tests.canaries import NAMES, SECRETS
from tests.conftest import make_record, make_settings

# Variables that would change a figure, or where a process finds its modules, its settings and its files.
LEAKS = {
    "HOME": "/home/caller",
    "KERAS_BACKEND": "other",
    "KERAS_HOME": "/home/caller/.keras",
    "XLA_FLAGS": "--xla_fast",
    "NVIDIA_TF32_OVERRIDE": "1",
    "PYTHONPATH": "/home/caller/modules",
    "LD_PRELOAD": "/home/caller/x.so",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "OMP_NUM_THREADS": "64",
    "TMPDIR": "/home/caller/tmp",
}


def environments(mark: str) -> dict[str, dict[str, str]]:
    """Return the environment of each kind of process: of a cell, of a fork server, and of both kinds of probes."""
    settings = make_settings(backend="jax")
    executor = ProcessExecutor(mark=mark)
    try:
        return {
            "cell": cell_environment(settings, mark),
            "server": executor._environment(settings),
            "probe": probe._environment(settings, mark, "/scratch"),
            "probe of numpy": probe._environment(make_settings(backend="numpy"), mark, "/scratch"),
        }
    finally:
        executor.close()


@pytest.mark.fault("F31", mutation="`_environment` of the probes begins with a copy of os.environ")
def test_no_variable_of_the_caller_reaches_a_process_of_a_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*SECRETS, *LEAKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the server's home is made
    before = environments("mark")
    for name, value in (SECRETS | LEAKS | {"TMPDIR": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    after = environments("mark")
    own = {"HOME", "KERAS_HOME", "TMPDIR"}
    for kind, found in after.items():
        assert set(found) == set(before[kind]), kind
        assert {name: value for name, value in found.items() if name not in own and before[kind][name] != value} == {}
        assert "caller" not in str(found), kind


@pytest.mark.fault("F31", mutation="CREDENTIAL does not match names with TOKEN")
@pytest.mark.parametrize("name", [*NAMES.split(), "GOOGLE_APPLICATION_CREDENTIALS", "aws_profile", "OPENAI_API_KEY"])
def test_variable_with_credentials_is_known_by_its_name(name: str) -> None:
    assert CREDENTIAL.fullmatch(name)


@pytest.mark.parametrize("name", [*ALLOWED, "PWD", "OLDPWD", "TERM", "KEYBOARD", "CUDA_VISIBLE_DEVICES", "MXNET_HOME"])
def test_other_variable_is_not_taken_for_a_credential(name: str) -> None:
    """Mutation: CREDENTIAL matches any name that contains KEY or PWD."""
    assert CREDENTIAL.fullmatch(name) is None


@pytest.mark.fault("F31", mutation="variables_problem() shows the value of what it refuses")
@pytest.mark.parametrize("name", sorted(SECRETS))
def test_variable_of_a_matrix_that_carries_a_credential_is_refused_without_its_value(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = SECRETS[name]
    matrix = tmp_path / "matrix.yaml"
    entry = f"{{workload: {{script: train.py}}, env: {{{name}: '{secret}'}}}}"
    matrix.write_text(f"version: 1\nbackends: [jax]\ncells: [{entry}]\n")
    (tmp_path / "train.py").touch()
    words = f"{name}={secret}"
    for command in (
        ["--matrix", str(matrix), "--allow-env", name],
        ["plan", "--matrix", "matrix.yaml", "--set", f"env={words}"],
        ["script", "--env", words, str(tmp_path / "train.py")],
    ):
        assert main([*command, "--results", str(tmp_path / "results")] if command[0] != "plan" else command) == 2
        text = "".join(capsys.readouterr())
        assert f"{name}, a credential by its name or value" in text
        assert secret not in text
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("value", ["ghp_" + "a" * 36, "hf_" + "b" * 34, "sk-proj-" + "c1" * 20, "AKIA" + "D" * 16])
def test_value_by_which_a_service_knows_its_user_is_a_credential_under_any_name(value: str) -> None:
    assert "a credential" in (variables_problem({"MODE": f"x {value}"}) or "")
    assert variables_problem({"DATA": "/data/sk-learn/hf_datasets/ghp_sets"}) is None


def test_variables_of_somebody_elses_record_are_checked_before_it_is_measured_again() -> None:
    record = make_record(None, settings=make_settings(env="LD_PRELOAD=/tmp/theirs.so"))
    with pytest.raises(UsageError, match="LD_PRELOAD, which decides what code a process loads"):
        stored_cell([record])
    own = make_record(None, settings=make_settings(env="DATA_DIR=/data"))
    assert stored_cell([own]).settings.env == "DATA_DIR=/data"
