"""`python -m uploader` runs the command `uploader`."""

import sys

from uploader.cli.main import main

sys.exit(main())
