"""The report of a run, and the other pages that are files."""
