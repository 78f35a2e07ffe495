"""Plans which repeat of which cell runs, in which order, and when a session is complete."""
