"""A session at several machines at the same time: which comparison runs where, and a thread for each machine."""
