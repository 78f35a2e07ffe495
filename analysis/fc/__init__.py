"""What the cells of the FC modes show together. Pure."""
