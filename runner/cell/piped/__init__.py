"""Training from an input pipeline: one stream of batches over all calls of `fit`, and what its reading costs."""
