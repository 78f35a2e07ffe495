"""The user's runner."""
