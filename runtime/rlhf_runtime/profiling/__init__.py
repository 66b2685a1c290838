"""Measures the times of a model's layers on this machine, for `rlhf_planner.problem.profile`.

job_subjects.py the models of a manifest
subjects.py     models to measure, and the parts that are built of them
timed_model.py  a model as training engines build it, with times at the ends of its blocks
training.py     its passes, and the optimizer's step
generation.py   short runs of the generation engine
constants.py    the memory's bandwidth, and collectives
ranks.py        the processes that measure, and their answers; their settings: setup.py
one_rank.py     the measurement of one process
"""
