"""Lower bounds of open strategies: no plan below a node of the search takes less time or memory.

calls.py   calls of a role or of its engines: the minimum over what completes a strategy
memory.py  bytes of roles and engines, and the capacity of a placement
step.py    a step, from times of its calls
"""
