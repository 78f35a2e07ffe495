"""Reads a matrix file into checked cells: strict YAML, grammar, expansion, overrides. Pure."""
