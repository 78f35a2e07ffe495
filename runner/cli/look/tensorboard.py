"""Start TensorBoard on the files of `--log-dir`: scalars of every process, its model's graph, its profile.

    runner tensorboard                     the log folder of the newest run that had one
    runner tensorboard --log-dir FOLDER    any other

It needs the extra `tensorboard`. docs/instruments.md
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from keras_matrix.dashboards.live.app.hosts import address
from keras_matrix.records.store import Results
from keras_matrix.runner.cli.options import add_results_option, log_folder
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.measure.experiment import LOG_DIR_NAME


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    parser.add_argument(
        "--log-dir", type=log_folder, metavar="FOLDER", help="default: the log folder of the newest run with one"
    )
    parser.add_argument("--listen", default="127.0.0.1:6006", metavar="HOST:PORT", help="default: 127.0.0.1:6006")


def run(args: argparse.Namespace) -> int:
    """Replace this process with TensorBoard, which ends with Ctrl-C."""
    folder = args.log_dir or _newest(args.results)
    if not folder.is_dir():
        raise UsageError(f"--log-dir: there is no folder {folder}; write one with: runner --log-dir {folder}")
    try:
        host, port = address(args.listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from error
    if importlib.util.find_spec("tensorboard") is None:
        raise InfrastructureError(
            "tensorboard is not installed here: pip install 'keras-matrix[tensorboard]'; the files are "
            f"in {folder}; any TensorBoard opens them"
        )
    if importlib.util.find_spec("tensorboard_plugin_profile") is None:
        print("runner: profiles need the plugin too: pip install tensorboard-plugin-profile", file=sys.stderr)
    sys.stdout.flush()
    options = ["--logdir", str(folder), "--host", host, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tensorboard.main", *options])
    raise AssertionError("this process was replaced")


def _newest(results: Path) -> Path:
    """Return the log folder of the newest run with one. Raises `UsageError`."""
    for stored_run in reversed(Results(results).runs()):
        log_dir = (stored_run.load_object(LOG_DIR_NAME) or {}).get("log_dir")
        if isinstance(log_dir, str):
            return Path(log_dir)
    raise UsageError(f"--log-dir: no run of {results} has a log folder; measure with: runner --log-dir FOLDER")
