"""Whether backends compute the same: deviations and their explanations. Pure."""
