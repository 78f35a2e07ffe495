"""Checks of the measurement itself: parity, roofline, preflight, the first hour on a device."""
