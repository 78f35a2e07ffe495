"""Texts, tables and progress for the terminal."""
