"""Access to jobs on a cluster for `rlhf submit`, `status`, `logs` and similar commands.

Commands reach Kubernetes through the protocol in `client`, which `remote` implements. What they
show is computed from the cluster's answers by pure functions.
"""
