"""The devices of each role, and how its model is cut over them.

placement.py    devices for each kind of a role's calls, and groups of devices with equal roles
role_sets.py    the placements Split and Standalone
parallelism.py  cuts of each role's devices by its training engine
transitions.py  calls that the plan adds between training and generation
validation.py   placements that this version refuses
"""
