"""Apply a decision's actions to Kubernetes."""
