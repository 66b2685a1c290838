"""The contract: the RLHFJob that a user writes, and the StatusReport of a run.

This file imports nothing: a verifier's process needs one module of the package, and starts fast.
"""
