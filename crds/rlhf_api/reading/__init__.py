"""Readers of manifests and statuses: from text or JSON to models, or to a list of problems."""
