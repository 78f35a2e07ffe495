"""A program that finds a terminal, and prints more than anybody reads."""

import os
import sys

assert sys.stdout.isatty()
assert os.get_terminal_size().columns == 80
line = "x" * 1023 + "\n"
mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 64
for _ in range(mebibytes << 10):
    sys.stdout.write(line)
sys.exit("the end")
