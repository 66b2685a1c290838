"""Resharding: moves weights from any layout over ranks to any other.

A weight is a canonical (Hugging Face) name, a box of the full tensor and a view of the rank's own
storage. Plans are pure functions of two layouts; only `execute` talks to other ranks.
"""
