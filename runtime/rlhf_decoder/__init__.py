"""Arithmetic of decoders that planner and runtime share: dimensions, weights and their cuts, costs.

Pure, except that `config` reads config.json. Planner and runtime must agree on these numbers.
"""
