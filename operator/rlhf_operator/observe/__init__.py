"""Read a job and its objects from Kubernetes, and the state of its head."""
