"""What responses are worth: verifiers, the processes they run in, and their weighted sum.

A verifier is a function that takes a list of Sample (and its parameters) and returns one number for
each. Only what verifiers use is imported here, so that their own processes stay small.
"""

from rlhf_runtime.rewards.measures import measures
from rlhf_runtime.rewards.sample import Sample

__all__ = ["Sample", "measures"]
