"""Pure tensor numerics of RLHF: advantages, losses and their statistics.

Nothing here depends on models, ranks or files. The caller passes in the function that sums over
ranks.
"""
