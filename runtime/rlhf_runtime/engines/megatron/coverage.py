"""Whether the ranks of a model-parallel group hold every weight as often as they should."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlhf_runtime.engines.megatron.architecture import Architecture, full_name
from rlhf_runtime.engines.megatron.family import EMBEDDING, Cut
from rlhf_runtime.reshard.boxes import Box, uncovered
from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Piece


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
    """Check that every element of every weight is held exactly as often as it should be.

    Args:
        architecture: of the model.
        pieces: of every rank of one model-parallel group.
        tensor: tensor ranks.
        pipeline: pipeline stages.

    Raises:
        LayoutError: a region is missing or held too often, or a name is unknown.
    """
    boxes: dict[str, list[tuple[int, Box]]] = {name: [] for name in architecture.shapes()}
    for rank, held in enumerate(pieces):
        for name, box in held:
            if name not in boxes:
                raise LayoutError(
                    f"a weight that the model does not have: got {name!r} on rank {rank}; correct "
                    "the mapping of its family"
                )
            boxes[name].append((rank, box))
    copies = wanted_copies(architecture, tensor, pipeline)
    for name, shape in architecture.shapes().items():
        _check_weight(name, Box.whole(shape), boxes[name], copies[name])


def _check_weight(name: str, whole: Box, held: list[tuple[int, Box]], copies: int) -> None:
    """Lay the boxes one upon the other: each of `copies` levels has to be the whole."""
    levels: list[list[Box]] = [[] for _ in range(copies)]
    for rank, box in held:
        if not whole.contains(box):
            raise LayoutError(
                f"a piece outside its weight: got {box} of {name!r} on rank {rank}, allowed inside "
                f"{whole.shape}; correct the mapping of its family"
            )
        parts = [box]
        for level in levels:
            parts, new = _overlap(parts, level), _rest(parts, level)
            level += new
        if parts:
            raise LayoutError(
                f"a region is held too often: got {parts[0]} of {name!r} once more on rank {rank}, "
                f"allowed {copies} times; correct the mapping of its family"
            )
    for level in levels:
        if missing := uncovered(whole, level):
            raise LayoutError(
                f"a region is missing: {missing[0]} of {name!r} is not held {copies} times by the "
                "ranks of a model-parallel group; correct the mapping of its family"
            )


def _rest(parts: Iterable[Box], level: list[Box]) -> list[Box]:
    return [left for part in parts for left in uncovered(part, level)]


def _overlap(parts: Iterable[Box], level: list[Box]) -> list[Box]:
    common = (part.intersection(box) for part in parts for box in level)
    return [box for box in common if box is not None]
