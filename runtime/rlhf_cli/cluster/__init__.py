"""What the commands for jobs on a cluster do: `rlhf submit`, `status`, `logs` and their neighbours.

Kubernetes is reached through the protocol in `client`, which `remote` implements. What is shown
is computed by pure functions from what the cluster said.
"""
