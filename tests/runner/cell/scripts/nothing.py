"""A program that never trains, overwrites a large file of its project, and ends with an exit code."""

import sys
from pathlib import Path

with Path("large.log").open("r+") as log:
    assert log.read(1) == "x", "the program has the file's content"
Path("large.log").write_text("overwritten")
sys.exit(0)
