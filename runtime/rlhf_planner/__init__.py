"""The planner: which devices each call of a job uses, how models are cut, and how they fit into
memory.

    plan.py          entry points for the command and the operator
    problem/         the input: graphs, models, devices, workload, and what the manifest fixes
    placement/       strategies of roles (strategy.py): devices, cuts of their models, and the rest
    memory/          memory of one device, and choices that depend on it
    cost/            times of calls
    simulation/      times of steps; charts of them in timeline/
    pipelines/       training pipelines of several models in one schedule
    feasibility.py   checks a job's strategy against the devices
    plan_calls.py, plan_builder.py, evaluate.py  from a feasible job to a plan with its times
    candidates/      the family of strategies that are compared
    bounds/          lower bounds of strategies that are open
    baselines/       plans by published rules
    stage_fusion/    inference that begins before generation has ended
    search/          branch and bound over the family
    advice/          changes with which a job would fit

Folders are layers: each imports only those above it in this list (see the import contracts). The
runtime imports nothing of the planner: it gets the Plan.
"""
