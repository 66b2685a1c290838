"""A batch of rollouts as roles get it: four prompts, three responses each, in two uneven shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, ColumnSource, InputBatch, Segment
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.engines.world import World
from rlhf_runtime.faults import Faults
from rlhf_runtime.roles.context import RoleContext

from ..engines.tiny_models import ragged
from ..meshes import parallel_of

PROMPT_LENGTHS = [30, 1, 9, 4]
RESPONSE_LENGTHS = [4, 11, 1, 6, 2, 8, 3, 3, 9, 12, 1, 5]
GROUPS = np.repeat(np.arange(4), 3)
MAX_RESPONSE = 12
NUM_ROWS = len(RESPONSE_LENGTHS)
PREFERENCE = np.array([1, -1, -1, 1, -1, 0, -1, 1, 1, 1, 1, 1], dtype=np.int8)
"""Two pairs, one, two, and none."""
WHOLLY_MASKED = (4, 10)
SHARDS = (slice(0, 8), slice(8, NUM_ROWS))
"""Where the batch is cut; not where the ranks would cut it."""


def tokens_like(seed: int, scale: float, offset: float = 0.0) -> Column:
    """Random numbers, one per response token."""
    draw = np.random.default_rng(seed)
    values = offset + scale * draw.standard_normal(sum(RESPONSE_LENGTHS))
    return Column(values.astype(np.float32), np.asarray(RESPONSE_LENGTHS, dtype=np.int32))


def make_mask() -> Column:
    """Gaps at the beginning, in the middle and at the end of responses; of two all is left out."""
    flags = np.random.default_rng(10).random(sum(RESPONSE_LENGTHS)) < 0.6
    mask = Column(flags.astype(np.int8), np.asarray(RESPONSE_LENGTHS, dtype=np.int32))
    for row in WHOLLY_MASKED:
        mask.runs()[row][:] = 0
    return mask


def masked(columns: dict[str, Column]) -> dict[str, Column]:
    """A batch with a response mask, whose numbers of tokens that it leaves out are NaN: these reach
    whatever they touch."""
    mask = make_mask()
    return {"response_mask": mask} | {
        name: Column(np.where(mask.values == 1, each.values, np.nan).astype("f4"), each.lengths)
        if each.lengths is not None and each.values.dtype == np.float32
        else each
        for name, each in columns.items()
    }


def make_batch() -> dict[str, Column]:
    """Every column that a call may read; three rows have no valid score."""
    draw = np.random.default_rng(9)
    valid = np.ones(NUM_ROWS, dtype=np.int8)
    valid[[1, 7, 11]] = 0
    scores = draw.standard_normal(NUM_ROWS).astype(np.float32) * valid
    scores[3:6] = 0.5  # a group of equal scores
    return {
        "prompt_tokens": ragged(PROMPT_LENGTHS, 1).take(GROUPS),
        "prompt_id": Column(GROUPS * 7),
        "response_tokens": ragged(RESPONSE_LENGTHS, 2),
        "reward_scores": Column(scores),
        "reward_valid": Column(valid),
        "advantages": tokens_like(3, 1.0),
        "returns": tokens_like(4, 1.0),
        "critic_values": tokens_like(5, 0.3),
        "token_rewards": tokens_like(6, 1.0),
        "rollout_log_probs": tokens_like(7, 0.3, -5.5),
        "actor_log_probs": tokens_like(8, 0.3, -5.5),
        "reference_log_probs": tokens_like(9, 0.3, -5.5),
    }


def make_job(folder: Path, **sections: Any) -> RLHFJob:
    """A job whose actor is the model of a folder; keyword arguments replace sections."""
    spec: dict[str, Any] = {
        "algorithm": {"type": "GRPO"},
        "models": {"actor": model_of(folder)},
        "data": {"train": {"path": "train.jsonl"}},
        "rewards": [{"function": {"entrypoint": "verifiers:exact"}}],
        "schedule": {"steps": 10, "promptsPerStep": 4},
        "rollout": {
            "samplesPerPrompt": 3,
            "maxPromptTokens": 32,
            "maxResponseTokens": MAX_RESPONSE,
            "temperature": 0.7,
        },
    }
    return RLHFJob.model_validate(
        {
            "apiVersion": "rlhf-operator.dev/v1alpha1",
            "kind": "RLHFJob",
            "metadata": {"name": "test"},
            "spec": spec | sections,
        }
    )


def model_of(folder: Path, **training: Any) -> dict[str, Any]:
    """A model whose micro-batches hold a few rows each; keyword arguments are of its training."""
    settings = {"microBatchTokens": 60} | training
    return {"source": {"path": str(folder)}, "training": settings}


def context_of(job: RLHFJob, role: str, folder: Path, world: World) -> RoleContext:
    return RoleContext(
        job=job,
        plan=plan_of(job, world)[1],
        role=role,
        folder=folder,
        world=world,
        mesh=parallel_of(world),
        sync_group=None,
        incarnation="test",
        faults=Faults((), folder, str(world.rank)),
    )


def plan_of(job: RLHFJob, world: World) -> tuple[Mapping[GraphName, Any], Plan]:
    return make_plan(job, [local_inventory(world.size, 16 * GIB)])


def call_of(job: RLHFJob, world: World, call: str) -> ModelCall:
    """A call of the job's step."""
    graph = plan_of(job, world)[0][GraphName.STEP]
    found: ModelCall = graph.call(call)
    return found


def inputs_of(
    call: ModelCall,
    columns: Mapping[str, Column],
    world: World,
    step: int = 1,
    mini_batches: int = 1,
    auxiliary: Mapping[str, Column] | None = None,
    reads_samples: bool = True,
) -> CallInputs:
    """What a rank of the world gets for a call, with so many mini-batches.

    Args:
        auxiliary: columns of the batch of an auxiliary loss, one row of each prompt.
        reads_samples: False if the responses are those of the data.
    """
    lengths = np.asarray(RESPONSE_LENGTHS, dtype=np.int32)
    prompt_lengths = columns["prompt_tokens"].lengths
    assert prompt_lengths is not None
    whole = ShardIndex(np.arange(NUM_ROWS), GROUPS * 7, prompt_lengths + lengths)
    positions = [np.arange(NUM_ROWS)[part] for part in SHARDS]
    source = ColumnSource((Segment(len(SHARDS), {name: name for name in call.reads}),))
    shards = [
        Shard(whole.take(part), {name: columns[name].take(part) for name in call.reads})
        for part in positions
    ]
    batches = [InputBatch(BatchShape(4, 3), (source,))]
    if auxiliary is not None:
        shape, shard = alone(auxiliary)
        names = {name: name for name in auxiliary}
        batches.append(InputBatch(shape, (ColumnSource((Segment(1, names),)),)))
        shards.append(shard)
    request = CallRequest(
        *(call, step, GraphName.STEP, "test", tuple(batches), mini_batches),
        reads_samples=reads_samples,
    )
    return CallInputs(request, shards, Coordinates(data=world.rank, data_size=world.size))


def alone(columns: Mapping[str, Column]) -> tuple[BatchShape, Shard]:
    """Rows of which each is of a prompt of its own, in one shard."""
    lengths = columns["response_tokens"].lengths
    assert lengths is not None
    rows = np.arange(len(lengths), dtype=np.int64)
    return BatchShape(len(lengths)), Shard(ShardIndex(rows, rows, lengths), columns)
