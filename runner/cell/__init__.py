"""What runs inside a cell's own process. Imports `models`, `records` and a backend; nothing of the host side."""
