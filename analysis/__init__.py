"""What it means: pure functions from records to findings."""
