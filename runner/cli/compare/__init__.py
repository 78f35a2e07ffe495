"""Commands that compare what was measured."""
