"""The client of the Kubernetes API server."""
