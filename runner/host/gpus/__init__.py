"""The GPUs through NVML, the driver's own library: which there are, their state, and readings while cells run."""
