"""Read a job and its objects from Kubernetes and from the head of its cluster."""
