"""Lower bounds of seconds and memory for partial plans."""
