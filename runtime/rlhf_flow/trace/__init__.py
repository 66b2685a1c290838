"""Tracing: a step is run once on symbolic batches, which gives the graph of its calls."""
