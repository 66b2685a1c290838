"""Simulated steps: tasks on exclusive devices and the arcs between them."""
