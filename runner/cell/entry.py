"""The entry point of a cell's process: reads the job, runs it, writes the result or the error.

`python -P -m keras_matrix.runner.cell.entry JOB` is the fresh start; a fork server calls `run_job` in its child. In
both cases the process ends with `os._exit`: a backend's tear-down costs up to a second and could only damage what is
already written.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

from keras_matrix.records.codec import CodecError
from keras_matrix.records.fc import spec
from keras_matrix.records.host import inherited_environment
from keras_matrix.records.host.import_path import search_path
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, make_home, read_job, result_of, write_result
from keras_matrix.runner.cell.user_errors import report_of

# The path of a Unix socket has at most 107 bytes; multiprocessing adds up to 40 for a folder and a name.
LONGEST_SOCKET_FOLDER = 64
MESSAGE_CHARACTERS = 4000


def import_backend() -> float:
    """Import Keras with the backend that `KERAS_BACKEND` names; return the seconds it took. Initialises no device."""
    begun_s = monotonic()
    with inherited_environment.kept(os.environ):
        import keras  # noqa: F401

        import keras_matrix.runner.cell.measure  # noqa: F401

        __import__(f"keras_matrix.runner.cell.backends.{os.environ['KERAS_BACKEND']}")
    return monotonic() - begun_s


def run_job(path: Path, import_time_s: float | None, start: str) -> int:
    """Run the job at `path` and return the exit code: 0 with a result, 1 with an exception instead."""
    job = read_job(path)
    os.environ.update(make_home(job))
    tempfile.tempdir = None
    _shorten_socket_paths(tempfile.gettempdir())
    os.chdir(job.folder)
    try:
        if import_time_s is None:
            import_time_s = import_backend()
        # After the backend, as in the child of a fork server: it finds none of the user's modules by mistake.
        sys.path[:] = search_path(job.import_roots, sys.path)
        _work(job, import_time_s, start)
    except Exception as error:  # noqa: BLE001 - the process boundary: any error of a workload becomes evidence
        traceback.print_exc()
        _report(job, error)
        return 1
    return 0


def _shorten_socket_paths(folder: str) -> None:
    """Let multiprocessing name its sockets by a descriptor of its folder if the path would exceed the system's limit.

    Without this, workers of a data loader end with "AF_UNIX path too long" if the results folder has a long name. The
    folder itself stays the cell's own, so that its end removes the sockets.
    """
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        # Not public; `multiprocessing.util.get_temp_dir` of Python 3.11 to 3.13 begins with it.
        vars(multiprocessing.current_process())["_config"]["tempdir"] = f"/proc/{os.getpid()}/fd/{descriptor}"


def _work(job: Job, import_time_s: float, start: str) -> None:
    if job.parity is not None:
        from keras_matrix.runner.cell.parity.worker import run_parity_worker

        run_parity_worker(job, job.parity)
        return
    if spec.is_native(job.settings):
        from keras_matrix.runner.cell.fc import measure_fc

        write_result(job, measure_fc(job, import_time_s, start))
        return
    from keras_matrix.runner.cell.measure import measure

    write_result(job, measure(job, import_time_s, start))


def leave(code: int) -> None:
    """End the process at once, with what was printed flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # full, closed or replaced by the workload
            continue
    os._exit(code)


def _report(job: Job, error: Exception) -> None:
    if job.goes_on and job.result_path.exists():
        return  # the figures were complete before it continued, and remain
    name, message = report_of(error, job)
    try:
        write_result(job, replace(result_of(job), exception=name, message=message[:MESSAGE_CHARACTERS]))
    except (OSError, CodecError):
        traceback.print_exc()


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
