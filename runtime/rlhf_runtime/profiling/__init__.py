"""What layers take on this machine's devices: measures what `rlhf_planner.problem.profile`
keeps.

    job_subjects.py which models' layers, from a manifest
    subjects.py     parts of models that are built to be measured
    timed_model.py  a model as training engines build it, with times at the ends of its blocks
    training.py     its passes, and the optimizer's step
    generation.py   short runs of the generation engine
    constants.py    the memory's bandwidth, and collectives
    ranks.py        the processes that measure, and what they tell; what they are told: setup.py
    one_rank.py     what one of them does
"""
