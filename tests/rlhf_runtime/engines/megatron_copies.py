"""How many ranks of a model-parallel group hold each of Megatron's weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlhf_runtime.engines.megatron.architecture import Architecture, full_name
from rlhf_runtime.engines.megatron.family import EMBEDDING, Cut
from rlhf_runtime.reshard.coverage import num_copies
from rlhf_runtime.reshard.layout import Layout, Piece


def wanted_copies(architecture: Architecture, tensor: int, pipeline: int) -> dict[str, int]:
    """How many ranks of a model-parallel group hold each element of a weight, by name.

    Norms are on every tensor rank of their stage; a tied embedding is on the first stage and on the
    last.
    """
    copies = {
        full_name(weight, layer): tensor if parameter.cut is Cut.WHOLE else 1
        for _, parameter, layer in architecture.parameters()
        for weight in parameter.weights
    }
    if architecture.is_tied and pipeline > 1:
        copies[EMBEDDING.weights[0].name] = 2
    return copies


def check_coverage(
    architecture: Architecture, pieces: Sequence[Iterable[Piece]], tensor: int, pipeline: int
) -> None:
    """Every element of every weight is held exactly as often as it should be.

    Args:
        architecture: of the model.
        pieces: of every rank of one model-parallel group.
        tensor: tensor ranks.
        pipeline: pipeline stages.
    """
    layout = Layout(architecture.shapes(), tuple(map(tuple, pieces)))
    assert num_copies(layout) == wanted_copies(architecture, tensor, pipeline)
