"""Times of calls: arithmetic from a role's model, its cut, rows, lengths and hardware.

Nothing here measures, searches or keeps state: equal arguments give equal seconds, so that a search
may evaluate thousands of plans.

    hardware.py         rates of a device and its links, with presets
    pool_hardware.py    the same with what the manifest says of a pool
    micro_batches.py    lengths of sequences, and a replica's share of a batch, cut as by the
        runtime
    layers.py           times of a layer: the interface for measured profiles (`LayerSeconds`)
    analytic_layers.py  layers by the roofline of data sheets
    measured_layers.py  layers from a profile
    collectives.py      collectives and messages over the links of a node and between nodes
    fsdp.py, megatron.py, train_and_infer.py  TRAIN and INFER calls
    generation.py       GENERATE calls
    transfers.py        offloading, copies and resharding of weights, columns
    batches.py          rows and columns of a call of a step
    fusion.py           plans whose generation overlaps with readers of responses
    calls.py            each kind of call of a step, for plans and for lower bounds
    plan.py             each call of a planned step
    seconds.py          the parts of an estimate, and optimizer steps

Units are seconds, bytes, FLOP (a multiplication and an addition are two) and tokens. All numbers
are those of the slowest rank or engine.
"""
