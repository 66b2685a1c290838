"""What can be checked of a job before anything starts: files, rows, models, the user's functions.

Nothing here imports torch or ray, or holds a model in memory. What workers check again when they
start, they check by the same functions.
"""
