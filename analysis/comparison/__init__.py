"""Comparison of cells: the table of a run, base against new, and the caveats of each row. Pure."""
