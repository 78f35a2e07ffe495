"""Checks of the GPUs or TPUs that cells need, made before anything is measured."""
