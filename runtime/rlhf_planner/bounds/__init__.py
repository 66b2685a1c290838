"""Lower bounds of partial plans: no plan below a node takes less time or memory.

time.py    times of calls on their devices
step.py    a step, from times of its calls
memory.py  bytes of roles and engines, and the capacity of a placement
"""
