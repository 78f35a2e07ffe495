"""The user's settings."""

WIDTH = 4
