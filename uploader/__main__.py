"""`python -m keras_matrix.uploader` runs the command `uploader`."""

import sys

from keras_matrix.uploader.cli.main import main

sys.exit(main())
