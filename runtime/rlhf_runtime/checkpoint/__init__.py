"""Saved state of a job: where it is stored, whether it is complete, and what it contains."""
