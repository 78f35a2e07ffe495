"""Input stalls: how long a step waits for data, where, and what a change would gain. Pure functions of records."""
