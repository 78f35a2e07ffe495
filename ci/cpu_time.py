"""Runs a command some times, each time in a new copy of the folder `data`, and reports its mean CPU time.

    python ci/cpu_time.py TIMES WORD...     as the command of an external task: docs/tasks.md

The time of the copies and of this interpreter is not part of it, nor what the command waits for.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

METRIC = "cpu_time"


def main() -> None:
    """Run the command; a run that fails ends this one with its exit code."""
    times, command = int(sys.argv[1]), sys.argv[2:]
    for _ in range(times):
        with tempfile.TemporaryDirectory() as name:
            folder = shutil.copytree("data", Path(name, "data"), symlinks=True)
            if code := subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False).returncode:
                sys.exit(code)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    reported = {"metric": METRIC, "value": (used.ru_utime + used.ru_stime) / times, "unit": "s"}
    Path(os.environ["KERAS_BENCHMARK_METRICS"]).write_text(json.dumps(reported) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
