"""What was seen: the schema of a record, its identity, and the store that keeps it. Standard library only."""
