"""Reads a data source into prompts and answers as token ids, and selects the rows of each step.

Nothing here imports torch or ray: it runs in processes that handle text only.
"""
