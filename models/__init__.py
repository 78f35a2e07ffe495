"""What is measured: one short file per family of workloads, their inputs, and the catalogue the host reads as data."""
