"""`ci/setup` in a bad environment works, or ends with one line that says what to do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.backends]

ROOT = Path(__file__).parents[3]
PYTHON = """\
#!/bin/sh
# Reports a version; makes a virtual environment whose Python notes pip's arguments and environment.
case "$*" in
*"import ensurepip, sys"*) echo "$0" ;;
*print*) echo "{version} $0" ;;
*ensurepip*) exit {without_venv} ;;
"-m venv"*)
    {venv}
    echo "$*" >>venv-arguments
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    cp "$0" .venv/bin/pip
    printf 'executable = %s\nversion = {version}\n' "$0" >.venv/pyvenv.cfg ;;
"-I "*"/ci/run_uv.py pip compile"*) {torch} ;;
"-m pip index versions "*) {torch_by_pip} ;;
"-I "*"/ci/run_uv.py pip install"*" --require-hashes")
    env | sort >uv-environment
    {uv} ;;
"-m pip install --no-compile "*" --require-hashes")
    env | sort >pip-environment
    {pip} ;;
"-I "*"/ci/run_uv.py pip install"*" -r locks/torch-build-cpu.txt"*) {torch_by_uv} ;;
"-I "*"/ci/run_uv.py"*) touch asked-uv ;;
esac
"""


NO_X = "ERROR: No matching distribution found for x==1"
LACKING = "the index has no x==1 for Python 3.11: use an index that has it (PIP_INDEX_URL), or another Python (PYTHON=)"
NEWEST = "; the newest with a build of x==1 is Python 3.13"


class Clone:
    """What `ci/setup` reads of a clone, in a folder with spaces and an umlaut, and programs of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ein Ordner für uns"
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in (
            "ci/setup",
            "ci/install",
            "ci/pythons",
            "ci/uv",
            "ci/run_uv.py",
            "ci/report_downloads.py",
            "docker/check_packages",
            "pyproject.toml",
            "locks",
        ):
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
        (self.folder / "src" / "keras_matrix").mkdir(parents=True)
        self.add("df", "echo 9000")

    def add(self, name: str, text: str) -> None:
        """Add a program that hides the one of the same name."""
        path = self.programs / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def add_python(self, name: str, version: str = "3.11.2", **answers: str) -> None:
        """Add a Python that reports this version, and installs nothing; commands for uv, pip and their questions."""
        default = {
            "without_venv": "0",
            "venv": ":",
            "torch": "exit 0",
            "uv": "exit 0",
            "pip": "exit 0",
            "torch_by_pip": "exit 1",
            "torch_by_uv": "exit 0",
        }
        self.add(name, PYTHON.format(version=version, **{**default, **answers}))

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start it among these programs and the system's; an empty variable is left out."""
        known: Mapping[str, str] = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "HOME": str(self.programs),
            "PYENV_ROOT": str(self.programs / "none"),
        }
        given = {name: value for name, value in {**known, **environment}.items() if value}
        pipe = subprocess.PIPE
        return subprocess.Popen(self.folder / "ci" / "setup", env=given, stdout=pipe, stderr=pipe, text=True)

    def set_up(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it."""
        with self.start(**environment) as process:
            output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def complaint(self, **environment: str) -> str:
        """Return the one line with which it ends."""
        done = self.set_up(**environment)
        assert done.returncode == 3
        [line] = done.stderr.splitlines()
        return line.replace(str(self.folder), "CLONE").replace(str(self.programs), "PROGRAMS")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path)
    made.add_python("python3")
    for minor in range(11, 15):  # whatever this machine has is hidden
        made.add(f"python3.{minor}", "exit 127")
    return made


def test_clone_in_a_folder_with_spaces_and_umlauts_is_set_up_once(clone: Clone) -> None:
    first, second = clone.set_up(), clone.set_up()
    assert (first.returncode, first.stderr, second.returncode, second.stderr) == (0, "", 0, "")
    assert re.sub(r"\d+ s$", "N s", first.stdout.splitlines()[-1]) == "set-up: done in N s"
    assert second.stdout == ""


NO_TENSORFLOW = ", for which tf-cpu has no build; the newest with builds of all is 3.13"


@pytest.mark.parametrize(("version", "lacking"), [("3.10.13", ""), ("3.14.0", NO_TENSORFLOW), ("3.19.0", "")])
def test_unsupported_python_is_named_with_one_that_would_do(clone: Clone, version: str, lacking: str) -> None:
    """Mutation: a Python that some backends support is refused without the one that does not."""
    clone.add_python("python3", version)
    needed = f"error: PROGRAMS/python3 is Python {version}{lacking}: Python 3.11, 3.12 or 3.13 is needed; "
    assert clone.complaint() == f"{needed}install one with its venv, and set PYTHON to it if it is not python3"
    clone.add("python3.12", "echo /opt/python3.12")
    assert (
        clone.complaint(PYTHON=str(clone.programs / "python3"))
        == f"{needed}set PYTHON to one that is here: /opt/python3.12"
    )


def test_missing_venv_names_its_package(clone: Clone) -> None:
    clone.add_python("python3", "3.12.3", without_venv="1")
    expected = "cannot make a virtual environment: apt-get install python3.12-venv (Debian, Ubuntu)"
    assert clone.complaint() == f"error: PROGRAMS/python3 {expected}"


def test_other_processor_is_refused_with_the_way_to_install_there(clone: Clone) -> None:
    clone.add("uname", "echo Linux aarch64")
    expected = "this is Linux aarch64: install without them (docs/commands.md)"
    assert clone.complaint() == f"error: the locks are for Linux on x86-64, {expected}"


def test_full_disk_is_reported_before_anything_is_installed(clone: Clone) -> None:
    clone.add("df", "echo 900")
    expected = "has 900 MiB free, .venv needs 4200: make room, or clone to another file system"
    assert clone.complaint() == f"error: CLONE {expected}"
    assert not (clone.folder / ".venv").exists()


def test_room_of_an_earlier_environment_counts_except_for_what_the_cache_keeps(clone: Clone) -> None:
    """Two files of 2 MiB, one of them with a second name in the cache."""
    (clone.folder / ".venv").mkdir()
    for name in ("removed", "linked"):
        (clone.folder / ".venv" / name).write_bytes(b"x" * 2**21)
    (clone.folder / "cache").hardlink_to(clone.folder / ".venv" / "linked")
    clone.add("df", "echo 4197")
    assert "has 4199 MiB free" in clone.complaint()
    clone.add("df", "echo 4198")
    assert clone.set_up().returncode == 0


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "no space left: make room in CLONE (9000 MiB free) or PROGRAMS (9000 MiB free), where pip unpacks",
        ),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'",
            "no connection to the package index; check the network or pip's proxy and index settings",
        ),
        (
            "error: Failed to fetch: https://index/x/\n  cause: error sending request for url (https://index/x/)",
            "no connection to the package index; check the network or pip's proxy and index settings",
        ),
        (NO_X, f"{LACKING}{NEWEST}, which is not here"),
        (
            "  cause: Because there is no version of x==1 and you require x==1, we can conclude",
            f"{LACKING}{NEWEST}, which is not here",
        ),
        (
            "  cause: Because x==1 has no wheels with a matching Python ABI tag (e.g., `cp311`)",
            f"{LACKING}{NEWEST}, which is not here",
        ),
        (
            "error: Failed to download `x==1`\n  cause: Hash mismatch for `x==1`",
            "x==1 of this index is not the file that the lock names: use another index (PIP_INDEX_URL)",
        ),
        ("ERROR: Package x is broken", "ERROR: Package x is broken"),
    ],
)
def test_failed_installation_is_one_line_with_its_cause(clone: Clone, output: str, expected: str) -> None:
    clone.add_python("python3", uv="exit 2", pip=f"cat >&2 <<'END'\n{output}\nEND\nexit 1")
    line = clone.complaint(TMPDIR=str(clone.programs))
    assert re.sub(r"^error: \d+", "error: N", line) == (f"error: N locked packages: {expected} (log: build/set-up.log)")


def test_cause_is_that_of_the_last_attempt(clone: Clone) -> None:
    clone.add_python("python3", uv="echo 'error sending request'; exit 2", pip=f"echo '{NO_X}'; exit 1")
    assert f"locked packages: {LACKING}{NEWEST}, which is not here (log" in clone.complaint(TMPDIR=str(clone.programs))


def test_newest_python_for_which_the_index_has_the_package_is_named_if_there_is_one(clone: Clone) -> None:
    """Mutation: the advice is given for PyTorch only."""
    no_x = f"echo '{NO_X}'; exit 1"
    clone.add_python("python3.13", "3.13.1")
    clone.add_python("python3", uv=no_x, pip=no_x)
    python = {"PYTHON": str(clone.programs / "python3")}
    expected = f"locked packages: {LACKING}{NEWEST}, PYTHON=PROGRAMS/python3.13 (log"
    assert expected in clone.complaint(**python)
    clone.add_python("python3", uv=no_x, pip=no_x, torch="exit 1")
    assert f"locked packages: {LACKING} (log" in clone.complaint(**python)


def test_environment_that_cannot_be_made_is_one_line_with_its_cause(clone: Clone) -> None:
    clone.add_python("python3", venv="echo 'Error: Unable to create directory .venv'; exit 1")
    expected = "Error: Unable to create directory .venv (log: build/set-up.log)"
    assert clone.complaint(TMPDIR=str(clone.programs)) == f"error: .venv: {expected}"


@pytest.mark.parametrize(("sent", "installer_goes_on"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_interrupted_set_up_keeps_its_lock_while_its_installer_runs(
    clone: Clone, sent: signal.Signals, installer_goes_on: bool
) -> None:
    """It ends its installer; if it is killed, which it cannot notice, the next set-up waits for the installer."""
    clone.add_python("python3", uv="echo $$ >uv.new; mv uv.new uv; exec sleep 60")
    installer = clone.folder / "uv"
    with clone.start() as set_up:
        while not installer.exists():
            assert set_up.poll() is None
        set_up.send_signal(sent)
        assert set_up.wait() == -sent
    # What a signal has ended lets go of the lock a moment after the set-up that waited for its first process only.
    wait = ["-n"] if installer_goes_on else ["-w", "30"]
    done = subprocess.run(["flock", *wait, clone.folder / "locks" / "cpu.txt", "true"], check=False)
    assert (done.returncode != 0) == installer_goes_on
    if installer_goes_on:
        os.kill(int(installer.read_text()), signal.SIGKILL)


def test_half_finished_environment_is_made_again_from_nothing(clone: Clone) -> None:
    """Mutation: an environment without its stamp is completed, with whatever an interrupted installation left."""
    clone.add_python("python3", uv="exit 2", pip="exit 1")
    assert clone.set_up().returncode == 3
    clone.add_python("python3")
    done = clone.set_up()
    assert (done.returncode, done.stderr) == (0, "")
    assert (clone.folder / "venv-arguments").read_text() == "-m venv --clear .venv\n" * 2
    assert clone.set_up().stdout == ""


def test_nothing_is_built_from_source_so_that_no_compiler_is_needed(clone: Clone) -> None:
    note = 'echo "$*" >>installed; exit 2'
    clone.add_python("python3", uv=note, pip='echo "$*" >>installed', torch_by_uv='echo "$*" >>installed')
    assert clone.set_up().returncode == 0
    commands = (clone.folder / "installed").read_text().splitlines()
    assert [" --only-binary :all: " in command for command in commands] == [True] * 3  # by uv, by pip, and PyTorch


def test_where_uv_fails_pip_installs_the_same(clone: Clone) -> None:
    clone.add_python("python3", uv="exit 2")
    done = clone.set_up()
    assert (done.returncode, done.stderr) == (0, "")
    assert (clone.folder / "pip-environment").exists()


def test_uv_takes_pytorchs_index_instead_of_the_users_default(clone: Clone) -> None:
    """Its --index-url would yield to the variable."""
    by_uv = 'case "$*" in *" --default-index https://download.pytorch.org/whl/cpu") ;; *) exit 2 ;; esac'
    clone.add_python("python3", torch_by_uv=by_uv)
    done = clone.set_up(UV_DEFAULT_INDEX="https://index")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--- pip" not in (clone.folder / "build" / "set-up.log").read_text()


@pytest.mark.parametrize("without", ["*--default-index*", r"*manylinux_2_28\ -"], ids=["PyTorch's", "the user's"])
def test_newest_python_with_a_build_of_every_backend_is_taken(clone: Clone, without: str) -> None:
    """The newest Python is asked first, and is replaced by the newest one for which either index has PyTorch.

    Mutation: both indexes must have it.
    """
    torch = rf'case "$*" in {without}) exit 1 ;; *version\ 3.11*) exit 0 ;; *) exit 1 ;; esac'
    for version in ("3.11.1", "3.13.1"):
        clone.add_python(f"python{version[:4]}", version, torch=torch)
    done = clone.set_up()
    assert (done.returncode, done.stderr) == (0, "")
    assert "locked packages (for Python 3.11.1, " in done.stdout
    assert clone.set_up().stdout == ""  # it stays with this one


def test_without_uv_pip_is_asked_which_python_has_every_backend(clone: Clone) -> None:
    build = re.search(r"^torch==(\S+)$", (ROOT / "locks" / "torch-build-cpu.txt").read_text(), re.MULTILINE)
    assert build is not None
    other, same = "Available versions: 1.0", f"Available versions: 9.9, {build[1]}, 1.0"
    answer = f'case "$*" in *version\\ 3.11*) echo "{same}" ;; *) echo "{other}"; echo "INSTALLED: {build[1]}" ;; esac'
    for version in ("3.11.1", "3.13.1"):
        clone.add_python(f"python{version[:4]}", version, torch_by_pip=answer)
    done = clone.set_up(INSTALLER="pip")
    assert (done.returncode, done.stderr) == (0, "")
    assert "locked packages (for Python 3.11.1, " in done.stdout
    assert not (clone.folder / "asked-uv").exists()


def test_settings_for_other_programs_do_not_reach_pip_and_those_of_the_network_do(clone: Clone) -> None:
    network = {"PIP_INDEX_URL": "https://index", "PIP_CERT": "/cert", "PIP_PROXY": "proxy", "PIP_CACHE_DIR": "/c"}
    network |= {"UV_HTTP_TIMEOUT": "9", "UV_CACHE_DIR": str(clone.programs)}
    others = {"PIP_TARGET": "/t", "PIP_PREFIX": "/p", "PIP_CONSTRAINT": "/c.txt", "PIP_REQUIRE_VIRTUALENV": "1"}
    others |= {"UV_TARGET": "/t", "UV_NO_VERIFY_HASHES": "1"}
    python = {"PYTHONPATH": "/hostile", "PYTHONHOME": "/nowhere", "PYTHONWARNINGS": "error"}
    neither = {"KERAS_BACKEND": "torch", "VIRTUAL_ENV": "/other", "CONDA_PREFIX": "/conda"}
    done = clone.set_up(**network, **others, **python, **neither)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (clone.folder / "uv-environment").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if re.match(r"PIP_|UV_|PYTHON\w", line))
    own = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
    assert seen == {**network, **own}


@pytest.mark.parametrize("unusable", ["not writable", "no home"])
def test_cache_that_uv_cannot_use_is_replaced_by_one_of_the_clone(clone: Clone, unusable: str) -> None:
    cache = clone.programs / ".cache" / "uv"
    (cache / "archive-v0").mkdir(parents=True)
    clone.add("find", f'case "$*" in *" {cache} "*"! -writable"*) echo {cache}/archive-v0 ;; esac')  # root may write
    done = clone.set_up(**{"HOME": "", "PYENV_ROOT": ""} if unusable == "no home" else {})
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in (clone.folder / "uv-environment").read_text().splitlines() if "UV_CACHE_DIR" in line]
    expected = "build/.cache/uv" if unusable == "no home" else "build/uv"
    assert line == f"UV_CACHE_DIR={clone.folder}/{expected}"


def test_hostile_pythonpath_does_not_reach_the_real_python(clone: Clone, tmp_path: Path) -> None:
    """Python imports `site` and `os` before anything else: with such modules it does not even start."""
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("site", "os", "venv", "ensurepip", "numpy"):
        (hostile / f"{name}.py").write_text("raise SystemExit('hostile')\n")
    clone.add("df", "echo 0")  # it ends once it has asked Python
    line = clone.complaint(PYTHONPATH=str(hostile), PYTHON=os.path.realpath(sys._base_executable))
    assert "0 MiB free" in line
