"""Cells in containers, one image per backend and device."""
