"""Pure tensor numerics of RLHF: advantages, losses and their statistics. One name, one operation.

Nothing here knows of models, ranks or files; whatever must be summed over ranks is summed by a
function that the caller passes in.
"""
