"""`phase: generate`: epochs of KerasHub's `generate()`, and our own loop of prefill and single decoding steps."""
