"""The progress of a measurement: a bar on a terminal, lines otherwise."""
