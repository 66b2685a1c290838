"""Rewards of responses: verifiers, the processes that run them, and their weighted sum.

A verifier is a function that takes a list of Sample (and its parameters) and returns one number per
sample.
"""

# Imports the interface of verifiers only, so that their processes start fast and stay small.

from rlhf_runtime.rewards.sample import Sample, measures

__all__ = ["Sample", "measures"]
