"""How many ranks a generation engine may span: what divides devices, nodes and models."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_api.plan import Mesh, Pool
from rlhf_flow.errors import DoesNotDivide
from rlhf_flow.planning.generation_groups import can_group
from rlhf_flow.planning.generation_memory import GenerationLoad
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.weight_parts import padded_vocabulary


def engine_sizes(pool: Pool, loads: Sequence[GenerationLoad]) -> tuple[int, ...]:
    """Ranks that an engine may span, of all roles for which that is not decided: those of a process
    share its groups. Ascending.

    Args:
        pool: the devices.
        loads: of the roles that generate there.

    Raises:
        DoesNotDivide: a size that is decided and does not divide.
    """
    for load in loads:
        if load.tensor and (problem := _does_not_divide(load.tensor, pool, load)):
            sizes = range(1, 1 + pool.devices_per_node)
            usable = [size for size in sizes if _does_not_divide(size, pool, load) is None]
            raise DoesNotDivide(
                f"{load.tensor_field} cannot be {load.tensor}: got {problem}; choose "
                f"{' or '.join(map(str, usable)) or 'other devices'}, or leave it out and the "
                "planner chooses"
            ).at("spec", *load.tensor_field.split("."))
    free = [load for load in loads if load.tensor is None]
    if loads and not free:
        return (1,)
    powers = [2**k for k in range(pool.devices_per_node.bit_length())]
    return tuple(
        power
        for power in powers
        if all(_does_not_divide(power, pool, each) is None for each in free)
    )


def _does_not_divide(tensor: int, pool: Pool, load: GenerationLoad) -> str | None:
    return _not_aligned(tensor, pool, load.trained.generating) or _not_cut(tensor, load.shape)


def _not_aligned(tensor: int, pool: Pool, mesh: Mesh) -> str | None:
    """Every rank is in one engine, whose ranks share a node."""
    if mesh.num_devices % tensor:
        return f"{mesh.num_devices} devices that generate, allowed one of its divisors"
    if not can_group(mesh, tensor, pool.devices_per_node):
        return (
            f"{pool.devices_per_node} devices per node, and ranks {mesh.ranks.start} to "
            f"{mesh.ranks.stop - 1} that generate, allowed a size of which all engines lie within "
            "nodes"
        )
    return None


def _not_cut(tensor: int, shape: DecoderShape) -> str | None:
    kv_heads = shape.num_key_value_heads
    if shape.num_attention_heads % tensor:
        return f"{shape.num_attention_heads} attention heads, allowed one of its divisors"
    if kv_heads % tensor and tensor % kv_heads:
        return f"{kv_heads} key and value heads, allowed one of its divisors or multiples"
    if shape.intermediate_size % tensor:
        return f"intermediate size {shape.intermediate_size}, allowed one of its divisors"
    if (padded := padded_vocabulary(shape.vocab_size, 1)) % tensor:
        return (
            f"a vocabulary of {shape.vocab_size}, which vLLM pads to {padded}, allowed one of its "
            "divisors"
        )
    return None
