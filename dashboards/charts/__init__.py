"""Charts as values: axes, marks, labels. Markup is in the templates."""
