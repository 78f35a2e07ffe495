"""Parity of backends: deviations and their explanations. Pure."""
