"""The user's models."""
