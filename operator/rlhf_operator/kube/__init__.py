"""Kubernetes behind a small protocol: the official client, and a fake judged by the same tests."""
