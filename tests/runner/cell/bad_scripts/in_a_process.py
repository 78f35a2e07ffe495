"""A program that trains in another one."""

import subprocess
import sys

subprocess.run([sys.executable, "-c", "print('trains')"], check=True)
