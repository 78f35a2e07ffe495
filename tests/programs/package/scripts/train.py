"""A project with a package of its own, a module of settings and a program in a folder.

Written for JAX, TensorFlow and PyTorch.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from weather.model import forecaster
from weather.series import windows
from weather.settings import SETTINGS

if __name__ == "__main__":
    x, y = windows(SETTINGS["hours"], SETTINGS["ahead"])
    model = forecaster(SETTINGS["hours"], SETTINGS["units"])
    model.fit(x, y, batch_size=SETTINGS["batch_size"], epochs=SETTINGS["epochs"])
    print("error in degrees", model.evaluate(x[-200:], y[-200:], verbose=0))
