"""The tables of text in a report."""
