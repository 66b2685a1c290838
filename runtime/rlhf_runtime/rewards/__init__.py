"""What responses are worth: verifiers, the processes they run in, and their weighted sum.

A verifier is a function that takes a list of Sample (and its parameters) and returns one number for
each. Only Sample is imported here, so that a verifier's own process stays small.
"""

from rlhf_runtime.rewards.sample import Sample

__all__ = ["Sample"]
