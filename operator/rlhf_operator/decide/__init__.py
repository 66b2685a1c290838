"""Decide what to do about a job, from what was observed. Pure."""
