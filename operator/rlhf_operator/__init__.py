"""The Kubernetes operator of RLHFJobs."""
