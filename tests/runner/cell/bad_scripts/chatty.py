"""A program that finds a terminal, and prints more than anybody reads."""

import os
import sys

assert sys.stdout.isatty()
assert os.get_terminal_size().columns == 80
line = "x" * 1023 + "\n"
for _ in range(1 << 16):
    sys.stdout.write(line)
sys.exit("the end")
