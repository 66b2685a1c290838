"""The strategy of each role: its devices, how its model is cut over them, and how it computes.

strategy.py     strategies of roles, of engines and of a job
placement.py    devices for each kind of a role's calls, and groups of devices with equal roles
role_sets.py    the placements Split and Standalone
parallelism.py  cuts that the manifest fixes, by training engines
transitions.py  calls that the plan adds between training and generation
validation.py   placements that this version refuses
"""
