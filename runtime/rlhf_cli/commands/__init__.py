"""The commands, one per file: options, help and the steps of each.

A command imports what it runs inside its function, so that `rlhf --help` loads neither torch nor
ray.
"""
