"""Comparisons across the cells of the FC modes. Pure."""
