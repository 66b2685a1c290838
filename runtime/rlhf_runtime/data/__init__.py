"""From a data source to prompts and answers as token ids, and which of them each step takes.

Runs in processes that handle text only: nothing here imports torch or ray.
"""
