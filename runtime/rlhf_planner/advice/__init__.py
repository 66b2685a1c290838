"""Advice for a job that does not fit."""
