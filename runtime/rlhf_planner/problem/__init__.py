"""The input of planning.

problem.py        graphs, models, devices, workload, and what the manifest fixes
from_manifest.py  the problem of a manifest, and what a manifest lacks for one
devices.py        pools of devices, from a manifest or this machine
model_shapes.py   dimensions of models
profile.py        measured times of layers
"""
