"""A server of cells that has imported KerasHub, too: each of its cells would import it, for some 5 s."""

import sys

from keras_matrix.models.language_models.hub import keras_hub
from keras_matrix.runner.cell import server

import_backend = server.import_backend


def import_backend_and_hub() -> float:
    import_time_s = import_backend()
    keras_hub()
    return import_time_s


if __name__ == "__main__":
    server.import_backend = import_backend_and_hub
    server.serve(server._connected(sys.argv[1]), sys.argv[2])
    server.leave(0)
