"""Runs `ci/bigquery`: see `ci.first_hour.command`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])  # in place of this folder, whose modules are `ci.first_hour.*`

from ci.first_hour.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
