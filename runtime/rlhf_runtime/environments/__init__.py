"""Environments of conversations: classes whose methods the model calls as tools.

An environment is a plain class. One object of it serves one conversation, in a process of its own.
"""

# Imports what users need only, so that the processes of conversations start fast and stay small.

from rlhf_runtime.environments.side_effects import side_effects

__all__ = ["side_effects"]
