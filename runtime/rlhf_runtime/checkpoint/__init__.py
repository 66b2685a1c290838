"""Saved state of a job: where it lies, whether it is whole, and what is in it."""
