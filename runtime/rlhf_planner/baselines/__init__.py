"""What others' rules choose for a job, to compare with and to start a search from.

    baseline.py              a plan by a rule, with what it takes
    simple_placements.py     all roles on all devices, in two sets, or each on devices of its own
    symmetric_cuts.py        one cut for several roles, the smallest first
    megatron_heuristic.py    one cut for all calls on all devices (ReaL's baseline)
    real_heuristic.py        ReaL's published rule: devices and a cut for each kind of call
    hybridflow_strategy.py   HybridFlow's algorithm 2: a role's cut and engines on so many devices
    hybridflow_mapping.py    HybridFlow's algorithm 1: sets of roles, and devices among them
    all_baselines.py         all of them, those that apply to a job

Each is made of what the runtime can execute: what a rule leaves open, or what cannot be done here,
is said where the rule stands. How to compute within memory (sizes of micro-batches, recomputation,
offloading) none of them says: they take the first way that fits (first_that_fits.py).
Pure and deterministic; every plan is judged by the one judge, estimate/evaluate.py.
"""
