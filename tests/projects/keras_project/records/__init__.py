"""The user's records."""
