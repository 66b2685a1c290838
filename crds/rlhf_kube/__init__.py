"""Access to Kubernetes' API for the operator and the command: kinds of objects, and the API
server."""
