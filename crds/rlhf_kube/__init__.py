"""Kubernetes' API as the operator and the command reach it: its kinds, and its server."""
