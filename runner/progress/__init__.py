"""What a measurement shows while it runs: a bar on a terminal, lines otherwise. For commands and the Python API."""
