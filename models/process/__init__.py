"""Settings of the process that computes."""
