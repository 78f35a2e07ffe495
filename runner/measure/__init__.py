"""Runs the planned repeats: one process per repeat, one record per attempt."""
