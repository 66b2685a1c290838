"""Workers that are forked from a process in which their libraries are imported already.

A node has one fork server. It stands by from the start of a job to its end: an incarnation of
workers, also one that takes the place of a dead one, waits for no import.

    raylet --starts--> launcher --asks--> server --forks--> worker, which Ray knows as any other
"""
