"""Cells compared: the table of a run, and what may be said of each row. Pure."""
