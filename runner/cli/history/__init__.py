"""The command `history`, one module for each of its uses."""
