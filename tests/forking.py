"""Run with KERAS_BACKEND: imports Keras once, and runs each script of standard input in a fork of this process.

A line is an order of `tests.imported`; the answer is a line with the exit code.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import keras  # noqa: F401 - with its backend: the import that the scripts share


def main() -> None:
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            end(code_of(json.loads(line)))
        _, status = os.waitpid(child, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))


def code_of(order: dict[str, Any]) -> int:
    """Run a script and return its exit code, with what Python would print."""
    try:
        run(**order)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the last resort, as of the interpreter
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> None:
    """End as the interpreter does, except that it does not take all modules apart, for half a second of CPU time."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(path: str | None, code: str, arguments: list[str], folder: str, limit_s: int) -> None:
    """Run the file at a path, or else the code, as Python does when it starts with it."""
    signal.alarm(limit_s)
    for number, name, mode in ((0, os.devnull, "rb"), (1, f"{folder}/out", "wb"), (2, f"{folder}/err", "wb")):
        with open(name, mode) as file:  # noqa: PTH123 - one line for three files
            os.dup2(file.fileno(), number)
    sys.argv = [path or "-c", *arguments]
    sys.path.insert(0, str(Path(path).parent) if path else "")
    if path:
        runpy.run_path(path, run_name="__main__")
    else:
        sys.modules["__main__"] = main_module = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main_module))  # noqa: S102 - the code of a test


if __name__ == "__main__":
    main()
