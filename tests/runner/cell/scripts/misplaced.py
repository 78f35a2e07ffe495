"""A program whose data is missing, in a folder of its project."""

from pathlib import Path

text = Path("data/missing.txt").read_text()
