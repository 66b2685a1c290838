"""Plans by published rules, to compare with and to start a search from.

    rule.py        common parts, placements by roles, and one cut for all calls (ReaL's baseline)
    realhf.py      ReaL's rule: devices and a cut for each kind of call
    hybridflow.py  HybridFlow's algorithms 1 and 2: sets of roles, their devices and strategies
    all.py         every rule that applies to a job

Rules choose only what the runtime can execute; each file says where it deviates from its source. No
rule chooses micro-batches, recomputation or offloading: plans use the first feasible choice
(feasibility.py). Pure and deterministic; every plan is evaluated by evaluate.py.
"""
