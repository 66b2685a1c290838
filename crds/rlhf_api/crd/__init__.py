"""What Kubernetes gets of the contract: the CustomResourceDefinition, and a schema for editors."""
