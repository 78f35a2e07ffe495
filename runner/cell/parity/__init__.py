"""The parity worker: one workload on one backend, with the noted causes of deviations."""
