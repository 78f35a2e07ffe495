"""Forecasts of the temperature."""
