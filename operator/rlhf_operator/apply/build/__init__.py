"""Manifests of the objects that the operator creates for a job. Pure."""
