"""The contract for Kubernetes and editors: the CustomResourceDefinition, and a JSON schema."""
