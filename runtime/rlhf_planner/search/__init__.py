"""Best-first branch and bound over placements and strategies.

    search_space.py      the strategies of a placement as a tree, and which are still feasible
    node_bounds.py       builds search spaces and bounds them
    branch_and_bound.py  the search itself: queue, incumbent, result
    search.py            the search of one problem, with its baselines
    pool_size.py         sizes of pools, and the objectives that compare them
    pool_size_bounds.py  lower bounds for a size of the pools
    pool_search.py       the search over sizes of the pools
    neighbours.py        plans that differ from a plan in one choice

Pure and deterministic. Which strategies are compared, and in which order, depends on models,
devices and their speed, never on their memory: with more memory the same plans are compared and
more fit.
"""
