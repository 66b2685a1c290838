"""Weights as boxes: one way to bring them from any layout over ranks into any other.

A weight is a canonical name, a box of the full tensor and a view of the rank's own storage. Plans
are pure functions of two layouts; only `execute` talks to other ranks.
"""
