"""How the user trains."""
