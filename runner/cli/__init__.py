"""The face: one small file per command. It may reach every room; nothing reaches it."""
