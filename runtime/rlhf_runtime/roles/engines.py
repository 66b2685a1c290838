"""The training engine of a role, as its manifest asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlhf_api.spec.models import TrainingEngineType, TrainingSpec
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.roles.context import RoleContext


def make_engine(context: RoleContext, *, value_head: bool = False) -> TrainingEngine:
    """Load a role's model. Every rank of its mesh does.

    Args:
        context: of the role.
        value_head: whether its model ends in a scalar head.

    Raises:
        UnsupportedModel, ModelIncomplete, WrongHead: it cannot be trained so.
    """
    training = context.job.spec.model_for(context.role).training
    return _engine_type(training)(
        context.folder,
        context.parallel,
        context.precision,
        value_head=value_head,
        needs_head=value_head and context.is_only_read,
        trained=context.planned.is_trained,
        recompute=context.planned.recomputes,
        tick=context.tick,
    )


def _engine_type(training: TrainingSpec) -> Callable[..., TrainingEngine]:
    match training.engine:
        case TrainingEngineType.FSDP:
            return FsdpEngine
        case TrainingEngineType.MEGATRON:
            # Seconds to import, and only here.
            from rlhf_runtime.engines.megatron.engine import MegatronEngine, ShardingOptions

            sharding = ShardingOptions(
                training.parallelism.sequence, training.distributed_optimizer
            )
            return partial(MegatronEngine, sharding=sharding)
