"""Probes of stored data sets for the stall analysis, in processes of their own."""
