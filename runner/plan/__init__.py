"""Which repeat of which cell runs, in which order, and when a session is done."""
