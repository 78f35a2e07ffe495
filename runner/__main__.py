"""`python -m keras_matrix.runner`: the command of the same name, where its script is not on the path."""

import sys

from keras_matrix.runner.cli.main import main

sys.exit(main())
