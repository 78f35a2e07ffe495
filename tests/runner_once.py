"""`python -P tests/runner_once.py ...`: the command `runner`, except that it measures no block a second time.

A run measures a block that other programs disturbed again. Where tests run at the same time that is every block, and
most of them look at no figure.
"""

from __future__ import annotations

import sys
from pathlib import Path

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure import scheduler

COMMAND = (sys.executable, "-P", str(Path(__file__)))

if __name__ == "__main__":
    scheduler.MOST_REPLACEMENTS = 0
    sys.exit(main())
