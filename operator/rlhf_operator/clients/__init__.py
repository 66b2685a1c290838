"""Clients of the Kubernetes API server and of the heads of clusters."""
