"""The user's uploader."""
