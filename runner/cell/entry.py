"""The entry point of a cell's process: reads the job, runs it, writes the result or the error.

`python -P -m keras_matrix.runner.cell.entry JOB` is the fresh start; a fork server calls `run_job` in its child. In
both cases the process ends with `os._exit`: a backend's tear-down costs up to a second and could only damage what is
already written.

Messages for errors of the user's own code end their first line with the user's file, line and code, by its path on the
host, and state the cause behind a library's error. They explain what a user cannot see: a file with the name of a
module that Python imports in its place, a syntax error, a relative path (a cell runs in a folder of its own), a missing
package, code for another backend. Other messages get the place alone.

Libraries that read in workers put the error of unreadable data somewhere into a longer text: it comes first here.

A module of its own: it is started as another process, without the fork server.
"""

from __future__ import annotations

import contextlib
import linecache
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import keras_matrix
from keras_matrix.records.backends import KERAS_2_VARIABLE
from keras_matrix.records.codec import CodecError
from keras_matrix.records.fc import spec
from keras_matrix.records.host import inherited_environment
from keras_matrix.records.host.import_path import search_path
from keras_matrix.records.host.platform import PLATFORM, Facility
from keras_matrix.records.settings import is_users
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, leave, make_home, read_job, result_of, write_result

# The path of a Unix socket has at most 107 bytes; multiprocessing adds up to 40 for a folder and a name.
LONGEST_SOCKET_FOLDER = 64
MESSAGE_CHARACTERS = 4000
INSTALLED = ("/site-packages/", "/dist-packages/", f"{Path(os.__file__).parent}/", f"{keras_matrix.__path__[0]}/")
LINE_LIMIT = 3000
NOT_REACHED = ("URLError", "HTTPError", "gaierror")  # errors of downloads, by name: their modules are not imported here
FOUND = (
    "~/.keras/models and ~/.keras/datasets, or the folder of --datasets, and the caches of TensorFlow Datasets, "
    "KaggleHub, Hugging Face and torch.hub"
)
CODE_CHARACTERS = 120
# A test compares it with the class, which is not imported here: it would import NumPy before the backend.
DATA_ERROR = "keras_matrix.models.inputs.stored.sample.InputDataError"
_DATA_ERROR_LINE = re.compile(r"\bInputDataError: (.+)")


def import_backend() -> float:
    """Import Keras with the backend that `KERAS_BACKEND` names; return the seconds it took. Initialises no device."""
    begun_s = monotonic()
    with inherited_environment.kept(os.environ):
        if (keras_2 := os.environ.get(KERAS_2_VARIABLE)) is not None:
            from keras_matrix.runner.cell.keras2 import import_modules

            import_modules(keras_2)
            return monotonic() - begun_s
        import keras  # noqa: F401

        import keras_matrix.runner.cell.measure  # noqa: F401

        __import__(f"keras_matrix.runner.cell.backends.{os.environ['KERAS_BACKEND']}")
    return monotonic() - begun_s


def run_job(path: Path, import_time_s: float | None, start: str) -> int:
    """Run the job at `path` and return the exit code: 0 with a result, 1 with an exception instead."""
    job, server_home = read_job(path), os.environ.get("HOME", "")
    os.environ.update(make_home(job))
    tempfile.tempdir = None
    _shorten_socket_paths(tempfile.gettempdir())
    os.chdir(job.folder)
    environment = dict(os.environ)  # without what libraries set for themselves
    try:
        if job.exported_path.exists():  # this process has replaced the one that exported the model
            from keras_matrix.runner.cell.artefacts import measure_exported

            write_result(job, measure_exported(job))
            return 0
        if import_time_s is None:
            import_time_s = import_backend()
        # After the backend, as in the child of a fork server: it finds none of the user's modules by mistake.
        if job.settings.script:
            job = _placed_script(job, server_home)
        else:
            if is_users(job.settings.workload):
                _find_downloads(job, server_home)
            sys.path[:] = search_path(job.import_roots, sys.path)
        _work(job, import_time_s, start)
        if job.exported_path.exists():
            _become_runtime(path, environment)
    except Exception as error:  # noqa: BLE001 - the process boundary: any error of a workload becomes evidence
        traceback.print_exc()
        _report(job, error)
        return 1
    return 0


def _become_runtime(path: Path, environment: dict[str, str]) -> NoReturn:
    """Replace this process, which has exported its model, by one with an interpreter that has imported nothing.

    It keeps the process id, its limits and its pipes, which it opens later.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", "keras_matrix.runner.cell.entry", str(path)], environment)


def _shorten_socket_paths(folder: str) -> None:
    """Let multiprocessing name its sockets by a descriptor of its folder if the path would exceed the system's limit.

    Without this, workers of a data loader end with "AF_UNIX path too long" if the results folder has a long name. The
    folder itself stays the cell's own, so that its end removes the sockets.
    """
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER and not PLATFORM.lacks(Facility.PROC):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        # Not public; `multiprocessing.util.get_temp_dir` of Python 3.11 to 3.13 begins with it.
        vars(multiprocessing.current_process())["_config"]["tempdir"] = f"/proc/{os.getpid()}/fd/{descriptor}"


def _placed_script(job: Job, server_home: str) -> Job:
    """Return the job of a program with a copy of its project, and search its modules as `python SCRIPT` does."""
    from keras_matrix.runner.cell.project import placed, working_folder

    originally, job = job, placed(job)
    _use_home_of_cell(server_home)
    os.chdir(working_folder(originally, job))
    sys.path[:] = search_path([str((Path(job.import_roots[0]) / job.settings.script).parent)], sys.path)
    return job


def _find_downloads(job: Job, server_home: str) -> None:
    """Let a user's `build` find in its home what programs find there, and keep those files as they are."""
    from keras_matrix.runner.cell.project import Originals, link_downloads

    link_downloads(job)
    _use_home_of_cell(server_home)
    Originals(Path(job.folder) / "home").keep()


def _use_home_of_cell(server_home: str) -> None:
    """Let libraries that a fork server has imported, with its own home, use that of the cell."""
    if keras_config := sys.modules.get("keras.src.backend.config"):
        vars(keras_config)["_KERAS_DIR"] = os.environ["KERAS_HOME"]
    if (hub := sys.modules.get("huggingface_hub.constants")) and server_home:
        folders = {name: str(path) for name, path in vars(hub).items() if str(path).startswith(f"{server_home}/")}
        vars(hub).update({name: f"{os.environ['HOME']}{path[len(server_home) :]}" for name, path in folders.items()})


def _work(job: Job, import_time_s: float, start: str) -> None:
    if KERAS_2_VARIABLE in os.environ and not job.settings.script:
        from keras_matrix.runner.cell.backends import Unsupported

        raise Unsupported("keras: on Keras 2 only programs are measured; use an environment with Keras 3")
    if job.parity is not None:
        from keras_matrix.runner.cell.parity import run_parity_worker

        run_parity_worker(job, job.parity)
        return
    if spec.is_native(job.settings):
        from keras_matrix.runner.cell.fc import measure_fc

        write_result(job, measure_fc(job, import_time_s, start))
        return
    if job.scouts:
        from keras_matrix.runner.cell.calls import scout_script

        scout_script(job)
        return
    if job.settings.script:
        from keras_matrix.runner.cell.script import measure_script

        measure_script(job, import_time_s, start)
        return
    from keras_matrix.runner.cell.measure import measure

    result = measure(job, import_time_s, start)
    if not job.exported_path.exists():
        write_result(job, result)


def _report(job: Job, error: Exception) -> None:
    if job.goes_on and job.result_path.exists():
        return  # the figures were complete before it continued, and remain
    name, message = report_of(error, job)
    try:
        write_result(job, replace(result_of(job), exception=name, message=message[:MESSAGE_CHARACTERS]))
    except (OSError, CodecError):
        traceback.print_exc()


def report_of(error: Exception, job: Job) -> tuple[str, str]:
    """Return the name of an error and its message; of unreadable data, however it is wrapped, its own line first."""
    text = message_of(error, job)
    if match := _DATA_ERROR_LINE.search(text):
        return DATA_ERROR, f"{match[1].rstrip()}\n{text}"
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}", text


def message_of(error: Exception, job: Job) -> str:
    """Return an error's message; its first line ends with the innermost line of the user's files, if there is one.

    It states the cause behind a library's own error, and the advice for a known mistake.
    """
    text = _cause_within_keras(str(error)) or type(error).__name__
    place = _place(error, job)
    if shadowed := _shadowed(error, job, place):
        return f"{shadowed}; rename it" + (f" (imported at {place.position})" if place else "")
    if isinstance(error, SyntaxError) and place is not None:
        text = error.msg or type(error).__name__
    root = _cause(error, job)
    line, newline, remainder = text.partition("\n")
    cause = _cause_within_keras(str(root)).partition("\n")[0]
    if root is not error and cause not in line:
        line = f"{line.rstrip('.:')}: caused by {type(root).__name__}: {cause}"
    if advice := _advice(root, place, job):
        line = f"{line.rstrip('.')}; {advice}"
    where = f" ({place.text})" if place is not None else ""
    return f"{line[:LINE_LIMIT]}{where}{newline}{remainder}"


_WITHIN_KERAS = re.compile(r"Exception encountered when calling (.+?)\.\n\n\x1b\[1m(.+?)\x1b\[0m", re.DOTALL)


def _cause_within_keras(text: str) -> str:
    """Return the message of an error before the one that Keras's traceback filter or TensorFlow's graph makes of it."""
    text = _cause_within_graph(text)
    while match := _WITHIN_KERAS.search(text):
        cause, newline, remainder = match[2].partition("\n")
        text = f"{cause} (in {match[1]}){newline}{remainder}"
    return text


_GRAPH_ERROR = "Graph execution error:"
# Of such an error: where in the graph, and the code that made that node.
_PLACE_IN_GRAPH = re.compile(r"$|Detected at node |<stack traces unavailable>|\d+ root error|\s+File |\s+\[\[")


def _cause_within_graph(text: str) -> str:
    """Return the text of an error of TensorFlow's graph with what failed as its first line."""
    first, _, remainder = text.partition("\n")
    if first.strip() != _GRAPH_ERROR:
        return text
    lines = (line for line in remainder.splitlines() if not _PLACE_IN_GRAPH.match(line))
    cause = re.sub(r"^\s*\(0\) (\w+: )?\s*", "", next(lines, first))
    return f"{cause.strip()}\n{remainder}"


def _cause(error: BaseException, job: Job) -> BaseException:
    """Return the first error of those that libraries raised from each other; one that the user raised is stated."""
    workload_files = _workload_files(job)
    while True:
        frames = traceback.extract_tb(error.__traceback__)
        is_the_users = bool(frames) and _is_users(frames[-1].filename, job, workload_files)
        context = None if error.__suppress_context__ or is_the_users else error.__context__
        cause = error.__cause__ or context
        # JAX adds an error without a message, for the traceback alone.
        if cause is None or not str(cause) or "StackTrace" in type(cause).__name__:
            return error
        error = cause


@dataclass(frozen=True, slots=True)
class _Place:
    """A line of the user's code: `FILE:LINE` on the host, and the code if it could be read."""

    position: str
    code: str = ""

    @property
    def text(self) -> str:
        return f"{self.position}: {self.code[:CODE_CHARACTERS]}" if self.code else self.position


def _place(error: BaseException, job: Job) -> _Place | None:
    """Return the innermost line in the user's files, of a syntax error the line that has it.

    Of a call that Python refused before it began, such as of `train_step`, it is the line of the function.
    """
    workload_files = _workload_files(job)
    lines: list[tuple[str, int | None, str]] = []
    chain: BaseException | None = error
    root = _cause(error, job)
    while chain is not None:
        lines += [
            (frame.filename, frame.lineno, frame.line or "") for frame in traceback.extract_tb(chain.__traceback__)
        ]
        chain = None if chain is root else chain.__cause__ or chain.__context__
    if isinstance(error, SyntaxError) and error.filename is not None:
        lines.append((error.filename, error.lineno, ""))
    lines += _refused_function(root)
    places = [
        _Place(f"{_host_path(path, job)}:{number}", code)
        for path, number, code in lines
        if _is_users(path, job, workload_files)
    ]
    return places[-1] if places else None


_REFUSED = re.compile(r"^([\w.<>]+)\(\) (?:takes|missing|got)\b")


def _refused_function(error: BaseException) -> list[tuple[str, int | None, str]]:
    """Return the line of the model's method that Python could not call with Keras's arguments, if that is the error."""
    match, keras = _REFUSED.match(str(error)), sys.modules.get("keras")
    if not isinstance(error, TypeError) or match is None or keras is None:
        return []
    kinds = [keras.Model]
    for kind in kinds:
        kinds += kind.__subclasses__()
        for method in vars(kind).values():
            if getattr(method, "__qualname__", None) == match[1] and (code := getattr(method, "__code__", None)):
                line = linecache.getline(code.co_filename, code.co_firstlineno)
                return [(code.co_filename, code.co_firstlineno, line.strip())]
    return []


_OTHER_LIBRARIES = {
    "tensorflow": re.compile(r"\b(tf|tensorflow)\."),
    "torch": re.compile(r"\btorch\."),
    "jax": re.compile(r"\b(jnp|jax|lax)\."),
}
_MISSING_FILE = re.compile(
    r"(?i)no such file|not found|does(?:n't| not) exist|unable to (?:\w+ )?open|(?:could|can)not find"
)
_RELATIVE_PATH = re.compile(r"""(?:filepath=|name = |path: |['"]|^)'?((?![/~])[\w.\-]+(?:/[\w.\-]+)*\.\w+)""")
_TRACED = re.compile(r"^(Tracer\w*|Concretization\w*|NonConcrete\w*)Error$")
# The package of a module, where it has another name.
_PACKAGES = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def _advice(error: BaseException, place: _Place | None, job: Job) -> str | None:
    """Return what to do about a mistake that programs for one backend or one folder often have; None for others."""
    if place is None:
        return None
    text, backend = str(error), job.settings.backend
    if is_users(job.settings.workload) and (advice := _advice_to_program(error)) is not None:
        return advice
    if isinstance(error, ModuleNotFoundError) and error.name and _users_file(error.name, job) is None:
        module = error.name.partition(".")[0]
        return f"install {_PACKAGES.get(module, module)} for the Python of the cells, or leave out what imports it"
    if (path := _relative_path(error)) is not None:
        if job.settings.script:
            folder = _host_path(f"{Path.cwd()}/", job).rstrip("/")
            return (
                f"the program runs in {folder}, of a copy of its project without hidden files: put {path!r} there, or "
                "start this command in the folder of the project from which it is found"
            )
        return f"a cell runs in a folder of its own: use Path(__file__).parent / {path!r}"
    if (
        isinstance(error, TypeError)
        and (match := _REFUSED.match(text))
        and match[1].endswith((".train_step", ".test_step"))
    ):
        form = "(state, data) and takes (logs, state) from it" if backend == "jax" else "(data)"
        return f"on {backend} Keras calls {match[1].rpartition('.')[2]}{form}: write one for each backend"
    for library, used in _OTHER_LIBRARIES.items():
        if library != backend and used.search(place.code):
            return f"the line uses {library} on {backend}: use keras.ops and keras.Variable, or leave out {backend}"
    if backend == "jax" and _TRACED.match(type(error).__name__):
        return "on JAX a step is traced, and has no values in Python: use keras.ops, without numpy() or float()"
    return None


def _advice_to_program(error: BaseException) -> str | None:
    """Return what to do about what a user's code finds at a desk, and not in a cell."""
    if isinstance(error, EOFError) and "EOF when reading a line" in str(error):
        return "nobody answers input() in what is measured: give it the text as an argument"
    if isinstance(error, ConnectionError) or type(error).__name__ in NOT_REACHED:
        return f"of your home folder a cell finds {FOUND}: download it before, or read a file of the project"
    return None


def _relative_path(error: BaseException) -> str | None:
    """Return the relative path that an error says is missing; a program that is missing is looked for elsewhere."""
    if isinstance(error, FileNotFoundError) and error.filename:
        innermost = traceback.extract_tb(error.__traceback__)[-1].filename
        is_relative = innermost != subprocess.__file__ and not Path(str(error.filename)).is_absolute()
        return str(error.filename) if is_relative else None
    if not _MISSING_FILE.search(str(error)):
        return None
    match = _RELATIVE_PATH.search(str(error))
    return match[1].rstrip(".") if match else None


def _is_users(path: str, job: Job, workload_files: tuple[str, ...]) -> bool:
    in_roots = any(path.startswith(f"{root}/") for root in job.import_roots)
    in_scratch = path.startswith(f"{job.folder}/") and not job.settings.script
    if path.startswith(f"{keras_matrix.__path__[0]}/") or in_scratch:
        return False
    return path.startswith(workload_files) or (in_roots and not any(folder in path for folder in INSTALLED))


def _workload_files(job: Job) -> tuple[str, ...]:
    """Return the folder of the workload's package or the file of its module: it may be an installed one."""
    module = sys.modules.get(job.settings.workload.partition(":")[0].partition(".")[0])
    if module is None or ":" not in job.settings.workload:
        return ()
    folders = getattr(module, "__path__", None)
    return tuple(f"{folder}/" for folder in folders) if folders else (str(module.__file__),)


def _shadowed(error: Exception, job: Job, place: _Place | None) -> str | None:
    """Return which of the user's files has the name of another module; None unless that module caused the error."""
    name = _module_of(error)
    if name is None and place is None and is_users(job.settings.workload) and not job.settings.script:
        name = job.settings.workload.partition(":")[0]
    if name is None:
        return None
    top = name.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None) or ""
    file = _users_file(name, job)
    if file is None or loaded == str(file) or loaded.startswith(f"{file}/"):
        return None
    is_standard = top in sys.stdlib_module_names
    if not is_standard and not any(folder in loaded for folder in INSTALLED):
        return None
    kind_text = "a standard module" if is_standard else "an installed module"
    return f"{_host_path(str(file), job)} has the name of {kind_text}, which Python imports in its place"


def _users_file(name: str, job: Job) -> Path | None:
    """Return the user's file with a module's name; for a module in a package the folder of the package."""
    top = name.partition(".")[0]
    for root in map(Path, job.import_roots):
        inner = root.joinpath(*name.split("."))
        with contextlib.suppress(PermissionError):  # nothing is found in a folder that is closed to this user
            if top != name and (inner.is_dir() or inner.with_suffix(".py").is_file()):
                return root / top
            for file in (root / f"{top}.py", root / top / "__init__.py"):
                if file.is_file():
                    return file
    return None


def _module_of(error: Exception) -> str | None:
    """Return the module that lacks what was imported from it or read as its attribute."""
    if isinstance(error, ImportError):
        return error.name if isinstance(error.name, str) else None
    module = error.obj if isinstance(error, AttributeError) else None
    return module.__name__ if isinstance(module, type(sys)) else None


def _host_path(path: str, job: Job) -> str:
    """Return a path in a folder of the user's as the host has it."""
    for root, host_root in zip(job.import_roots, job.host_roots, strict=False):
        if path.startswith(f"{root}/"):
            return host_root + path[len(root) :]
    return path


def main() -> None:
    """Run the job named on the command line in this fresh interpreter."""
    code = 1
    try:
        code = run_job(Path(sys.argv[1]), None, "fresh")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except CodecError as error:
        print(f"job: {error}: it is from another version of the runner; build the image again", file=sys.stderr)
    except BaseException:  # noqa: BLE001 - nothing can be reported once the process has ended
        traceback.print_exc()
    finally:
        leave(code)


if __name__ == "__main__":
    main()
