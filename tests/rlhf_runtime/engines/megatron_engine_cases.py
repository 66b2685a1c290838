"""The meshes of test_megatron_engine.

Apart from the scenarios, as Megatron takes seconds to import: tests are collected without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...depth import sample
from .megatron_cases import (
    ONE,
    REPLICAS_OF_TENSOR,
    STAGES_OF_TENSOR,
    TWO_REPLICAS,
    TWO_STAGES,
    TWO_TENSOR,
    mesh_of,
)
from .training_contract import IN_HALF_PRECISION, ONCE, PER_MODEL


class Case(NamedTuple):
    """A mesh, and with which options and models scenarios run there."""

    mesh: Any
    kinds: tuple[str, ...]
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    in_half_precision: bool = False
    """Whether bfloat16 is tried there."""


CASES: dict[int, dict[str, Case]] = {
    1: {"one rank": Case(ONE, ("llama", "tied"), in_half_precision=True)},
    2: {
        "two tensor ranks": Case(TWO_TENSOR, ("qwen2",)),
        "two tensor ranks that share sequences": Case(
            TWO_TENSOR, ("llama",), True, in_half_precision=True
        ),
        "two stages": Case(TWO_STAGES, ("tied",)),
        "two replicas": Case(TWO_REPLICAS, ("llama",)),
        "two replicas that share": Case(
            TWO_REPLICAS, ("tied",), distributed_optimizer=True, in_half_precision=True
        ),
    },
    4: {
        "two stages of two tensor ranks": Case(
            STAGES_OF_TENSOR, ("llama",), True, in_half_precision=True
        ),
        "two replicas of two tensor ranks that share": Case(
            REPLICAS_OF_TENSOR, ("qwen2",), True, True
        ),
        "two replicas of two stages that share": Case(
            mesh_of(2, 2, 1), ("tied",), distributed_optimizer=True
        ),
    },
}
"""By ranks of the world."""


MESHES_OF_A_SCENARIO = {1: 1, 2: 1, 4: 1}
"""Meshes of each scenario in a usual session, by ranks of the world."""


def names(size: int) -> dict[str, tuple[str, str, str]]:
    """The scenarios of a world of so many ranks: mesh, contract and model, by name."""
    found = {}
    contract = (*PER_MODEL, *ONCE, *IN_HALF_PRECISION)
    for number, name in enumerate(contract):
        meshes = [
            where
            for where, case in CASES[size].items()
            if case.in_half_precision or name not in IN_HALF_PRECISION
        ]
        for where in sample(number, meshes, MESHES_OF_A_SCENARIO[size]):
            for kind in CASES[size][where].kinds if name in PER_MODEL else ():
                found[f"{name} ({kind}; {where})"] = where, name, kind
            if name not in PER_MODEL:
                found[f"{name} ({where})"] = where, name, CASES[size][where].kinds[0]
    return found
