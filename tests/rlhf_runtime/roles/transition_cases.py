"""The scenarios of test_transition, by name. Apart from what they run, whose libraries take seconds
to import: tests are collected without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import TrainingEngineType
from rlhf_runtime.reshard.slices import TensorSlice, shard_slice

from ...depth import sample


class Case(NamedTuple):
    """How a model is trained, and in which groups it generates."""

    training: Mesh
    """Cut along `data` alone: FSDP2. Else Megatron's."""
    engines: Mesh
    model: str = "llama"

    @property
    def engine(self) -> TrainingEngineType:
        """What trains it."""
        is_sharded = self.training.num_devices == self.training.data
        return TrainingEngineType.FSDP if is_sharded else TrainingEngineType.MEGATRON


def mesh(data: int, tensor: int = 1, pipeline: int = 1, stride: int = 1, first: int = 0) -> Mesh:
    return Mesh(
        pool="pool",
        first_rank=first,
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        tensor_stride=stride,
    )


SHARDED, FOUR_TENSOR = mesh(4), mesh(1, tensor=4)
REPLICAS_OF_TENSOR, STAGES_OF_TENSOR = mesh(2, tensor=2), mesh(1, tensor=2, pipeline=2)
NEIGHBOURS, STRIDED = mesh(2, tensor=2), mesh(2, tensor=2, stride=2)

CASES: Mapping[int, Mapping[str, Case]] = {
    1: {"FSDP2 and an engine on one": Case(mesh(1), mesh(1))},
    4: {
        "FSDP2 on 4, groups {0,1} and {2,3}": Case(SHARDED, NEIGHBOURS),
        "FSDP2 on 4, groups {0,2} and {1,3}": Case(SHARDED, STRIDED),
        "1-4-1 in groups {0,2} and {1,3}": Case(FOUR_TENSOR, STRIDED),
        "1-2-2 in engines of one rank": Case(REPLICAS_OF_TENSOR, mesh(4)),
        "2-2-1 in groups {0,1} and {2,3}, tied": Case(STAGES_OF_TENSOR, NEIGHBOURS, "tied pairs"),
        "1-4-1 in one engine": Case(FOUR_TENSOR, FOUR_TENSOR),
        "FSDP2 on the last three, whose rows do not divide": Case(
            mesh(3, first=1), mesh(3, first=1)
        ),
        "FSDP2 and one engine on the two ranks in the middle": Case(
            mesh(2, first=1), mesh(1, tensor=2, first=1)
        ),
        "FSDP2 on {0,1}, one engine on {2,3}": Case(mesh(2), mesh(1, tensor=2, first=2)),
        "FSDP2 on {0,1}, engines of one rank on all": Case(mesh(2), mesh(4)),
        "FSDP2 on {1,2}, engines of one rank on {2,3}": Case(mesh(2, first=1), mesh(2, first=2)),
        "1-2-1 on {0,1}, one engine on {2,3}": Case(mesh(1, tensor=2), mesh(1, tensor=2, first=2)),
        "one rank, and an engine on {2,3} that is no neighbour": Case(
            mesh(1), mesh(1, tensor=2, first=2)
        ),
    },
}
"""By ranks of the world."""
COPIES = "copies are counted on both sides"
"""For four ranks."""

WAKING = (
    "weights wake and come before the cache",
    "an engine that never slept wakes for nothing",
    "the cache sleeps on where weights are stale",
)
"""What each rank plays by itself."""
USUAL_CASES = 8
"""Cases of four ranks that a session runs which is not nightly."""


def cases(size: int) -> Mapping[str, Case]:
    """The cases of a world of so many ranks that this session runs."""
    return {name: CASES[size][name] for name in sample(1, list(CASES[size]), USUAL_CASES)}


def names(size: int) -> tuple[str, ...]:
    """The scenarios of a world of so many ranks."""
    return (*WAKING, *((COPIES,) if size == 4 else ()), *cases(size))


ENDS = {"embedding": (5, 3), "norm": (6,)}
"""Full shapes."""
UNCUT: Mapping[str, Mapping[str, tuple[TensorSlice | None, ...]]] = {
    "rows": {
        name: tuple(shard_slice(shape, 0, rank, 4) for rank in range(4))
        for name, shape in ENDS.items()
    },
    "copies": {name: (TensorSlice.full(shape),) * 4 for name, shape in ENDS.items()},
    "halves": {
        "embedding": tuple(shard_slice((5, 3), 1, rank % 2, 2) for rank in range(4)),
        "norm": (TensorSlice.full((6,)),) * 4,
    },
    "some": {
        "embedding": tuple(shard_slice((5, 3), 0, rank % 2, 2) for rank in range(4)),
        "norm": (TensorSlice.full((6,)), None, TensorSlice.full((6,)), None),
    },
}
"""Which part of each tensor the four ranks hold, or none."""
