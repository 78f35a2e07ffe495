"""Where people look: the report of a run as one page."""
