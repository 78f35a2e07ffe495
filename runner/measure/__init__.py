"""Runs what was planned: one process per repeat, one record per attempt."""
