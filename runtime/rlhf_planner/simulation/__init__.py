"""Simulated steps: tasks on exclusive devices and the arcs between them.

event_graph.py  tasks, arcs, and the critical cycle, which gives the time of a step
simulate.py     a schedule of some iterations, idle time and critical path
step_tasks.py   the calls of a planned step as tasks
"""
