"""The workers of a problem as processes, of this machine or of several: starting them, meeting, and their networks."""
