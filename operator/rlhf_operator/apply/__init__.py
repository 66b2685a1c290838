"""Apply a decision to Kubernetes."""
