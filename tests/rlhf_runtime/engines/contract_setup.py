"""What scenarios of training engines share: an engine on a mesh, a batch, and oracles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
)

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import LearningRateDecay
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import (
    Loss,
    ReadLogProbs,
    ReadValues,
    TokenOutputs,
    TrainingEngine,
    WeightedLoss,
)
from rlhf_runtime.engines.world import World

from ..meshes import alone, contexts_of
from .tiny_models import PADDING, ragged, write_model
from .whole_weights import gathered_weights

PROMPT_LENGTHS = [30, 1, 9]
RESPONSE_LENGTHS = [4, 11, 1, 6, 2, 8]
GROUPS = np.array([0, 0, 0, 1, 2, 2])
"""Which prompt each response answers."""
NUM_TOKENS = sum(RESPONSE_LENGTHS)
LANGUAGE, SCALAR = ReadLogProbs(), ReadValues()
HALF = torch.bfloat16
NEAR = math.sqrt(24) * torch.finfo(HALF).eps / 2
"""Relative error, 0.019: each rounding's is at most half an epsilon, and about 12 in each of two
layers follow each other, independently."""


def settings(**changes: object) -> OptimizerSettings:
    """An optimizer whose epsilon keeps gradients that are zero but for rounding from mattering."""
    given: dict[str, object] = {
        "learning_rate": 1e-3,
        "beta1": 0.9,
        "beta2": 0.95,
        "epsilon": 1e-5,
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
        "decay": LearningRateDecay.NONE,
        "warmup_updates": 0,
        "total_updates": 10,
    }
    return OptimizerSettings(**(given | changes))  # type: ignore[arg-type]


def batch() -> tuple[Column, Column]:
    """Prompts and responses. The padding token stands among both, where it is one like others."""
    prompts, responses = ragged(PROMPT_LENGTHS, 1), ragged(RESPONSE_LENGTHS, 2)
    for column in (prompts, responses):
        column.values[3::7] = PADDING
    return prompts.take(GROUPS), responses


def cross_entropy(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
    """This micro-batch's share of the mean over all tokens of the whole batch."""
    return -outputs.values.sum() / NUM_TOKENS


@dataclass(frozen=True)
class Setup:
    """An engine on a mesh."""

    engine: Callable[..., TrainingEngine]
    """Called with a folder, the mesh as a rank sees it, a precision, and options by name."""
    mesh: Mesh
    options: dict[str, Any] = field(default_factory=dict)
    precision: torch.dtype = torch.float32
    """Of what does not say which."""

    def parallel(self, world: World) -> ParallelContext:
        """The mesh; all ranks of the world are in it. Collective."""
        return contexts_of(world, self.mesh)[self.mesh]

    def build(
        self, folder: Path, world: World, precision: torch.dtype | None = None, **options: Any
    ) -> Built:
        """An engine on all ranks. Collective."""
        return self.build_on(folder, self.parallel(world), precision, **options)

    def build_on(
        self,
        folder: Path,
        parallel: ParallelContext,
        precision: torch.dtype | None = None,
        **options: Any,
    ) -> Built:
        """An engine on a mesh that is there."""
        precision = precision or self.precision
        made = self.engine(folder, parallel, precision, **self.options, **options)
        return Built(made, parallel, precision)


@dataclass(frozen=True)
class Built:
    """An engine, and the mesh that it is on."""

    engine: TrainingEngine
    parallel: ParallelContext
    precision: torch.dtype = torch.float32

    @property
    def reads(self) -> bool:
        """Whether losses and readers are called on this rank."""
        return self.parallel.is_last_stage

    def train(self, loss: Loss = cross_entropy, max_tokens: int = 40) -> float:
        """An update on this rank's rows; returns the gradient's norm."""
        return self.engine.update([WeightedLoss(LANGUAGE, mine(self, max_tokens), loss)])


def fsdp_alone(folder: Path, world: World) -> Built:
    """On each rank one of its own."""
    parallel = alone(world)
    return Built(FsdpEngine(folder, parallel, torch.float32), parallel)


def rows_of(parallel: ParallelContext) -> NDArray[np.int64]:
    """The rows of a rank's replica: of several the first has four and the second two, so that
    groups are cut."""
    if parallel.data_size == 1:
        return np.arange(6)
    parts = {0: [0, 2, 3, 5], 1: [1, 4]}
    return np.array(parts.get(parallel.at.data, []), dtype=np.int64)


def pieces(
    built: Built, rows: NDArray[np.int64], max_tokens: int, share: bool = True
) -> list[MicroBatch]:
    """Rows as micro-batches; prompts are shared where the model says that it can."""
    packing = built.engine.packing(max_tokens)
    shares = share and packing.share_prompts
    return pack_micro_batches(*batch(), GROUPS, replace(packing, share_prompts=shares), rows)


def mine(built: Built, max_tokens: int) -> list[MicroBatch]:
    """The rows of this rank's replica."""
    return pieces(built, rows_of(built.parallel), max_tokens)


def log_probs_of(built: Built, max_tokens: int = 1000, share: bool = True) -> torch.Tensor:
    """Log-probabilities of all response tokens, packed; every replica computes them all."""
    got = torch.full((NUM_TOKENS,), torch.nan)

    def read(outputs: TokenOutputs, part: MicroBatch) -> None:
        got[part.tokens] = outputs.values.cpu()

    built.engine.infer(pieces(built, np.arange(6), max_tokens, share), LANGUAGE, read)
    return got


def model_folder(kind: str, world: World, folder: Path) -> Path:
    place = folder / kind
    if world.rank == 0 and not place.exists():
        write_model(kind, place)
    dist.barrier()
    return place


def whole_weights(built: Built) -> dict[str, torch.Tensor]:
    """All weights as they are trained, from the parts of all ranks. Collective."""
    return gathered_weights(built.engine.master_views(), built.parallel.group)


def assert_same_weights(
    one: Built, other: Built, before: dict[str, torch.Tensor] | None = None
) -> None:
    """Collective over both meshes. In bfloat16 the ways from what both were `before` are compared:
    Adam's steps along small gradients, whose errors are larger, are as long as others, so that they
    may be five times as far from each other."""
    expected, got = whole_weights(other), whole_weights(one)
    assert got.keys() == expected.keys()
    if HALF in (one.precision, other.precision) and before is not None:
        ways = [
            torch.cat([(each[name] - before[name]).flatten() for name in before])
            for each in (got, expected)
        ]
        apart = float((ways[0] - ways[1]).norm() / ways[1].norm())
        assert apart < 5 * NEAR, apart
        return
    for name, tensor in got.items():
        difference = float((tensor - expected[name]).abs().max())
        assert difference < 1e-5, (name, difference)


def assert_same_norm(got: float, expected: float, precision: torch.dtype = torch.float32) -> None:
    """Of a gradient."""
    allowed = 1e-5 if precision is torch.float32 else NEAR * expected
    assert abs(got - expected) < allowed, (got, expected)


def assert_close(
    got: torch.Tensor,
    expected: torch.Tensor,
    precision: torch.dtype = torch.float32,
    spread: float | None = None,
) -> None:
    """In bfloat16 on average, and relative to how much what it is computed from differs: by default
    the expected numbers themselves."""
    difference = got - expected
    if precision is torch.float32:
        assert float(difference.abs().max()) < 1e-5, difference
        return
    error = float(difference.square().mean().sqrt())
    allowed = NEAR * (float(expected.std()) if spread is None else spread)
    assert error < allowed, (error, allowed)


def hugging_face(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def expected_log_probs(folder: Path) -> torch.Tensor:
    """Hugging Face's, one unpadded row at a time, packed."""
    model = hugging_face(folder)
    prompts, responses = batch()
    found = []
    for prompt, response in zip(prompts.runs(), responses.runs(), strict=True):
        tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
        all_log_probs = model(tokens[None]).logits[0].log_softmax(-1)
        own = all_log_probs[len(prompt) - 1 : -1]
        found.append(own.gather(1, tokens[len(prompt) :, None])[:, 0])
    return torch.cat(found)
