"""Counts the work that a cell's process did."""
