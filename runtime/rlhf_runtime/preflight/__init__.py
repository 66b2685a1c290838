"""Checks of a job before anything starts: files, rows, models, the user's functions.

Nothing here imports torch or ray, or loads a model. Workers repeat checks by the same functions at
their start.
"""
