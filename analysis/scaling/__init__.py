"""What several workers or devices gain, and what part of a step they communicate. Pure."""
