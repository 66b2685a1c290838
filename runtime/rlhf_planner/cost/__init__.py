"""How long calls take: arithmetic from a role's model, its cut, rows, lengths and hardware.

Nothing here measures, searches or keeps state: equal arguments give equal seconds, so that a search
may ask for thousands of plans. Where to look for what:

    hardware.py         what a device and its links can do, presets in presets.py,
                        what a manifest says in given_hardware.py
    lengths.py          how long prompts and responses are, known by mean and maximum only
    micro_batches.py    a replica's share of a batch, cut as the runtime cuts it
    layers.py           what a layer takes: the seam for measured profiles (`LayerSeconds`)
    analytic_layers.py  layers by the roofline of data sheets, counted in layer_counts.py
    links.py            collectives and messages over the links of a node and between nodes
    training.py         TRAIN calls, with fsdp.py, megatron.py and optimizer.py
    inference.py        INFER calls
    generation.py       GENERATE calls, with decoding.py
    moves.py            offloading, copies of weights, columns; resharding in resharding.py
    call_seconds.py     what an estimate consists of

Units are seconds, bytes, FLOP (a multiplication and an addition are two) and tokens. All numbers
are those of the rank, or of the engine, that takes longest.
"""
