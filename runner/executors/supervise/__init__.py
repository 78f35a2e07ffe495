"""Watches a running process: output, resources, time, end."""
