"""Finds metrics in the log of an external command."""
