"""Cells as processes of this machine."""
