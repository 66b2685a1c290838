"""The ranks that form a generation engine: those to which the fewest weights must be sent.

A rank that generates with the part of the model that it trains is only sent the rest. Ranks of an
engine are at equal distances. With tensor parallelism that gives HybridFlow's groups, t / t_g
apart; with FSDP, ranks one full tensor part apart.

Source: HybridFlow (arXiv 2409.19256), section 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from rlhf_api.mesh import Mesh
from rlhf_api.plan_text import describe_groups
from rlhf_api.spec.models import TrainingEngineType
from rlhf_sizing.shape import DecoderShape
from rlhf_sizing.weights import all_weights, num_training_layouts, trained_weights


class TrainedModel(NamedTuple):
    """A model that generates, as its ranks hold it for training."""

    shape: DecoderShape
    mesh: Mesh
    """The mesh of training."""
    number_bytes: int
    """Bytes of a weight in generation."""
    engine: TrainingEngineType
    """The engine that trains it."""
    generation_mesh: Mesh | None = None
    """The ranks that generate, if they are not those that train."""

    @property
    def generating(self) -> Mesh:
        """The ranks that generate."""
        return self.generation_mesh or self.mesh


def engine_meshes(
    models: Mapping[str, TrainedModel], tensor: int, devices_per_node: int
) -> dict[str, Mesh]:
    """Choose the engines of each role that generates on a pool.

    Of the groupings with engines within nodes the one that moves the fewest bytes; of equals the
    one of the closest ranks.

    Args:
        models: each role that generates there; `groupings` must have some for its mesh.
        tensor: ranks of an engine.
        devices_per_node: of the pool.
    """
    # Roles on the same ranks get the same engines: vLLM has one set of groups in a process.
    by_ranks: dict[range, list[TrainedModel]] = {}
    for model in models.values():
        by_ranks.setdefault(model.generating.ranks, []).append(model)
    chosen = {
        ranks: _best(
            models_of_ranks, groupings(models_of_ranks[0].generating, tensor, devices_per_node)
        )
        for ranks, models_of_ranks in by_ranks.items()
    }
    return {role: chosen[model.generating.ranks] for role, model in models.items()}


def _best(models: Sequence[TrainedModel], choices: Sequence[Mesh]) -> Mesh:
    """The first grouping with the most bytes kept."""
    # Choices are in the order of their strides, so of equals the closest ranks win.
    return max(choices, key=lambda engines: sum(kept_bytes(model, engines) for model in models))


@lru_cache(maxsize=4096)
def groupings(generating: Mesh, tensor: int, devices_per_node: int) -> tuple[Mesh, ...]:
    """Meshes of engines within nodes, one for each possible stride.

    Args:
        generating: the ranks.
        tensor: ranks of an engine.
        devices_per_node: of the pool.
    """
    return tuple(_groupings(generating, tensor, devices_per_node))


@lru_cache(maxsize=4096)
def can_group(generating: Mesh, tensor: int, devices_per_node: int) -> bool:
    """True if there is a grouping; arguments as for `groupings`."""
    return any(True for _ in _groupings(generating, tensor, devices_per_node))


def _groupings(generating: Mesh, tensor: int, devices_per_node: int) -> Iterator[Mesh]:
    # A stride must divide the number of engines, or the last block would be incomplete.
    data, rest = divmod(generating.num_devices, tensor)
    if rest:
        return
    for stride in range(1, (data if tensor > 1 else 1) + 1):
        if data % stride:
            continue
        mesh = Mesh(
            pool=generating.pool,
            first_rank=generating.first_rank,
            data=data,
            tensor=tensor,
            tensor_stride=stride,
        )
        if _is_within_nodes(mesh, devices_per_node):
            yield mesh


def _is_within_nodes(engines: Mesh, devices_per_node: int) -> bool:
    """True if no engine crosses nodes."""
    reach = (engines.tensor - 1) * engines.tensor_stride
    block = engines.tensor * engines.tensor_stride
    # Blocks of stride x tensor ranks repeat; so does their position in nodes, after a common
    # multiple.
    first, period = engines.first_rank, math.lcm(block, devices_per_node)
    return reach < devices_per_node and all(
        rank // devices_per_node == (rank + reach) // devices_per_node
        for start in range(first, min(first + period, engines.ranks.stop), block)
        # The first and the last engine of a block enclose the others.
        for rank in (start, start + engines.tensor_stride - 1)
    )


@lru_cache(maxsize=4096)
def kept_bytes(model: TrainedModel, engines: Mesh) -> int:
    """Bytes that the ranks generate with and train themselves, so that nobody sends them.

    Args:
        model: the model as it is trained.
        engines: on the ranks that generate; ranks that do not train keep nothing.
    """
    num_layouts = num_training_layouts(model.mesh, model.engine)
    first = max(engines.first_rank, model.mesh.first_rank)
    both = range(first, min(engines.ranks.stop, model.mesh.ranks.stop))
    period = math.lcm(num_layouts, engines.tensor * engines.tensor_stride)
    total = 0
    # The other ranks repeat the first ones, period after period.
    for rank in both[:period]:
        index = (rank - model.mesh.first_rank) % num_layouts
        number = len(range(rank, both.stop, period))
        total += number * _kept_elements(model, engines, index, engines.tensor_index(rank))
    return total * model.number_bytes


def _kept_elements(model: TrainedModel, engines: Mesh, index: int, engine_index: int) -> int:
    """Elements of an engine's part that the rank at an index of training holds."""
    heads = model.shape.num_key_value_heads
    return sum(
        weights.number * part.overlap(weights.tensor_part(engine_index, engines.tensor, heads))
        for weights, part in trained_weights(model.shape, model.mesh, model.engine, index)
    )


@lru_cache(maxsize=4096)
def weight_bytes(model: TrainedModel, engines: Mesh) -> int:
    """Bytes of all weights that the ranks generate with."""
    heads = model.shape.num_key_value_heads
    elements = sum(
        weights.number * weights.tensor_part(index, engines.tensor, heads).num_elements
        for weights in all_weights(model.shape)
        for index in range(engines.tensor)
    )
    return elements * engines.data * model.number_bytes


def grouping_reason(role: str, model: TrainedModel, engines: Mesh) -> str:
    """The sentence that says why a role's engines have these ranks."""
    share = kept_bytes(model, engines) / weight_bytes(model, engines)
    reason = (
        f"engines of {role} are ranks {describe_groups(engines)}, which train {share:.0%} of what "
        "they generate with: "
    )
    if engines.tensor_stride == 1:
        return f"{reason}no groups of ranks further apart on a node train more"
    neighbours = engines.model_copy(update={"tensor_stride": 1})
    less = kept_bytes(model, neighbours) / weight_bytes(model, neighbours)
    return f"{reason}groups of neighbours train {less:.0%}"
