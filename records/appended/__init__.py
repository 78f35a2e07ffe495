"""Files of a results folder to which lines are only ever appended."""
