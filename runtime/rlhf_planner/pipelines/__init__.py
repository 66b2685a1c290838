"""Training pipelines of several models on the same devices, merged into one schedule.

pipeline.py       pipelines and their operations
schedule.py       times of operations, lower bounds, and pipelines one after the other
list_schedule.py  schedules by priority under a limit on activations
priorities.py     the priorities that are tried
fuse.py           annealing, and the best schedule of all
of_plan.py        the saving for a plan
"""
