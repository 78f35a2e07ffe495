"""uv gets pip's settings of how an index is reached, is the one that the lock pins, and what it has left is read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import script

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "locks" / "cpu.txt"
# Makes an "environment" whose Python is this script again, and prints every other call.
PYTHON = """\
#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/pip" && exit; fi
echo "$@"
"""


@pytest.fixture(scope="module")
def run_uv() -> ModuleType:
    return script("run_uv")


def test_settings_of_pip_become_variables_of_uv(run_uv: ModuleType) -> None:
    listed = """\
:env:.timeout='30'
global.cert='/ca.crt'
global.constraint='/c.txt'
global.extra-index-url='file:///a\\nfile:///b'
global.find-links='/wheels /more'
global.timeout='180'
install.proxy='http://proxy:3128'
download.index-url='https://elsewhere'
"""
    settings = run_uv.pip_settings(listed)
    variables = run_uv.uv_settings(settings, {})
    assert "UV_FIND_LINKS" not in run_uv.uv_settings(settings, {"UV_FIND_LINKS": "/mine"})
    assert variables == {
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_EXTRA_INDEX_URL": "file:///a file:///b",
        "UV_HTTP_TIMEOUT": "30",
        "SSL_CERT_FILE": "/ca.crt",
        "HTTP_PROXY": "http://proxy:3128",
        "HTTPS_PROXY": "http://proxy:3128",
    }


def test_forbidden_index_is_an_argument_for_uv_which_has_no_variable_for_it(run_uv: ModuleType) -> None:
    command = ["pip", "install", "--quiet", "x"]
    assert run_uv.uv_arguments({"no-index": "1"}, command) == ["pip", "install", "--no-index", "--quiet", "x"]
    assert run_uv.uv_arguments({"no-index": "false"}, command) == command
    assert run_uv.uv_arguments({"no-index": "1"}, ["--version"]) == ["--version"]
    assert "NO_INDEX" not in " ".join(run_uv.uv_settings({"no-index": "1"}, {}))


def test_uv_is_installed_from_its_hashed_pin(run_uv: ModuleType) -> None:
    pin = run_uv.pin_of_uv(LOCK.read_text(encoding="utf-8")).splitlines()
    assert pin[0].startswith("uv==")
    assert all(line.startswith("    --hash=sha256:") for line in pin[1:])
    assert len(pin) > 1
    with pytest.raises(ValueError, match=r"locks/cpu.txt: has no pin of uv with a hash"):
        run_uv.pin_of_uv("uv==1\nx==2 \\\n    --hash=sha256:0\n")


def test_downloads_that_are_left_are_read_from_the_log() -> None:
    left = script("report_downloads").left
    log = "Resolved 3 packages\nDownloading torch (1.5GiB)\nDownloading numpy (20.0MiB)\n"
    reports = ["1556 MiB to download: torch and 1 more", "20 MiB to download: numpy", None]
    assert [left(log), left(f"{log} Downloaded torch\n"), left("Resolved 3 packages\n")] == reports
    assert left(f"{log}error: no connection\n--- pip\nCollecting a==1\nCollecting b==2\n") == (
        "2 packages collected, now b==2"
    )
    assert left(f"--- uv\n--- pip\nCollecting a==1\n--- uv\n{log}") == reports[0]


@pytest.mark.process
@pytest.mark.parametrize("half_finished", [".venv", "build"])
def test_uv_is_run_by_no_half_finished_environment(tmp_path: Path, half_finished: str) -> None:
    """Mutation: the environment of uv is taken for finished once it has a Python, which comes before pip."""
    for name in ("ci/uv", "locks/cpu.txt"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    version = re.search(r"^uv==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert version is not None
    own = tmp_path / "build" / f"uv-{version[1]}"
    interrupted = (own if half_finished == "build" else tmp_path / ".venv") / "bin" / "python"
    interrupted.parent.mkdir(parents=True)
    for path, text in ((tmp_path / "python", PYTHON), (interrupted, "#!/bin/sh\nexit 1\n")):
        path.write_text(text)
        path.chmod(0o755)

    done = subprocess.run(
        [tmp_path / "ci" / "uv", "--version"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(tmp_path / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"-I {tmp_path}/ci/run_uv.py --version\n", "", 0)
    assert (own / "bin" / "pip").exists()
