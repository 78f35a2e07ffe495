"""The GPUs through NVML, the driver's own library: their list, their state, and readings while cells run."""
