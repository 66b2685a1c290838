"""Pods of a job as its user shapes them: the fields of Kubernetes' pods that are not ours."""
