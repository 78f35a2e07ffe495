"""How the user uploads."""
