"""Algorithms and graphs of a job."""
