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
        if load.tensor and (
            problem := _does_not_divide(load.tensor, pool, load.trained.generating, load.shape)
        ):
            mesh, shape = load.trained.generating, load.shape
            sizes = range(1, 1 + pool.devices_per_node)
            usable = [size for size in sizes if not _does_not_divide(size, pool, mesh, shape)]
            raise DoesNotDivide(
                f"{load.tensor_field} cannot be {load.tensor}: got {problem}; choose "
                f"{' or '.join(map(str, usable)) or 'other devices'}, or leave it out and the "
                "planner chooses"
            ).at("spec", *_location(load.tensor_field))
    free = [load for load in loads if load.tensor is None]
    if loads and not free:
        return (1,)
    possible = [possible_sizes(pool, load.trained.generating, load.shape) for load in free]
    return tuple(size for size in _powers(pool) if all(size in sizes for sizes in possible))


def _location(field: str) -> list[str | int]:
    """Where a field of the manifest is, from its name: `placement.groups[0].tensor`."""
    names = field.replace("[", ".").replace("]", "").split(".")
    return [int(name) if name.isdigit() else name for name in names]


def possible_sizes(pool: Pool, mesh: Mesh, shape: DecoderShape) -> tuple[int, ...]:
    """Ranks that an engine of a model may span on some devices of a pool. Ascending."""
    return tuple(size for size in _powers(pool) if is_possible(size, pool, mesh, shape))


def is_possible(tensor: int, pool: Pool, mesh: Mesh, shape: DecoderShape) -> bool:
    """Whether an engine of a model may span so many ranks on some devices of a pool."""
    return _does_not_divide(tensor, pool, mesh, shape) is None


def _powers(pool: Pool) -> list[int]:
    return [2**k for k in range(pool.devices_per_node.bit_length())]


def _does_not_divide(tensor: int, pool: Pool, mesh: Mesh, shape: DecoderShape) -> str | None:
    return _not_aligned(tensor, pool, mesh) or _not_cut(tensor, shape)


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
