"""Arithmetic that planner and runtime must agree on, or plans would not fit.

shape.py      dimensions of a decoder, and the counts that follow from them
config.py     the same from a config.json
weights.py    names and shapes of weights, and their cuts over ranks
costs.py      the cost of a sequence, and blocks of the logits
limits.py     sizes of batches and buffers
machine.py    the memory of this machine
schedules.py  orders of forward and backward passes in a pipeline
"""
