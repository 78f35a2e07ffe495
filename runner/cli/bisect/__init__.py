"""`runner bisect`: from an alarm to the version, day or commit that caused it."""
