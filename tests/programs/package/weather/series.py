"""The data."""

from pathlib import Path

import numpy as np


def windows(hours, ahead):
    """Windows of temperature and pressure, and the temperature some hours after each."""
    offset = float((Path(__file__).parent / "offset.txt").read_text())
    rng = np.random.default_rng(0)
    time = np.arange(1100)
    temperature = offset + 8 * np.sin(time / 24 * 2 * np.pi) + rng.normal(0, 1, len(time))
    pressure = rng.normal(0, 1, len(time)).cumsum() / 10
    series = np.stack([temperature, pressure], axis=1).astype("float32")
    starts = np.arange(len(series) - hours - ahead)
    return np.stack([series[s : s + hours] for s in starts]), series[starts + hours + ahead, 0]
