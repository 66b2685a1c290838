"""Workers that are forked from a process with imported libraries.

A node has one fork server, from the start of a job to its end. So no incarnation of workers waits
for imports, not even a replacement for a dead one.

    raylet --starts--> launcher --asks--> server --forks--> worker, which Ray treats as any other
"""
