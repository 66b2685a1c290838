"""The fastest of many plans: which devices each role has, how its model is cut there, and how it
computes within their memory.

    set_partitions.py  ways to part things into sets, and devices among them
    placements.py      where roles may be: the family of placements that are compared
    layouts.py         ways to cut the models of a placement, and sizes of its engines
    least_seconds.py   what the calls of a step take at least, whatever the plan
    least_memory.py    what roles hold at least, and the room for it
    layout_space.py    the layouts of a placement that may fit
    bounded_layouts.py both together: bounds for layouts, and beginnings of them
    find_plan.py       best first: the fastest plan that fits, and how far it is from the best

Pure and deterministic. What is compared, and in which order, depends on models, devices and their
speed, never on their memory: with more memory there are the same plans and more of them fit.
"""
