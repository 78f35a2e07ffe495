"""Where a workload's samples come from: synthetic by seed, scikit-learn's digits, or Keras's data sets on disk."""
