"""Histories of cells over sessions: values and change points. Pure."""
