"""Analysis: pure functions from records to findings."""
