"""Kubernetes behind a small protocol: its API server, and a fake judged by the same tests."""
