"""The settings."""

SETTINGS = {"hours": 24, "ahead": 3, "units": 16, "batch_size": 50, "epochs": 4}
