"""Graphs as manifests store them: writing, reading and checking."""
