"""External commands as cells: read from the matrix or a `.cfg`, started, watched, and their metrics found."""
