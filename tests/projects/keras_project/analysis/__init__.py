"""The user's analysis."""
