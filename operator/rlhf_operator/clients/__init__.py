"""Clients of Kubernetes and of the heads of clusters."""
