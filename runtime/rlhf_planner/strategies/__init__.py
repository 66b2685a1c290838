"""The family of plans that a search compares.

placements.py   the devices of each role
parallelism.py  cuts of models, and sizes of engines
"""
