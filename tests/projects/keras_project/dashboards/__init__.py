"""The user's dashboards."""
