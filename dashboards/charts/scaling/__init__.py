"""Pictures and figures of what several workers or devices gain."""
