"""Counts the work that a cell's process really did."""
