"""The sources of a workload's samples: synthetic by seed, scikit-learn's digits, or Keras's data sets on disk."""
