"""The training engine of a role, and the calls that move it to its devices and away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rlhf_api.calls import LOAD, OFFLOAD
from rlhf_api.plan import OffloadDepth
from rlhf_api.spec.models import TrainingEngineType, TrainingSpec
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.roles.context import Result, RoleContext


def make_engine(context: RoleContext, *, value_head: bool = False) -> TrainingEngine:
    """Load a role's model. Collective over its mesh.

    Args:
        context: of the role.
        value_head: whether its model ends in a scalar head.

    Raises:
        UnsupportedModel, ModelIncomplete, WrongHead: the engine cannot train this model.
    """
    training = context.job.spec.model_for(context.role).training
    return _engine_type(training)(
        context.folder,
        context.parallel,
        context.precision,
        value_head=value_head,
        # A critic starts with a new head; a frozen reward model must bring its own.
        needs_head=value_head and context.is_frozen,
        trained=context.role_plan.is_trained,
        recompute=context.role_plan.recomputes,
        excluded_tokens=context.excluded_tokens,
        tick=context.tick,
    )


def _engine_type(training: TrainingSpec) -> Callable[..., TrainingEngine]:
    match training.engine:
        case TrainingEngineType.FSDP:
            return FsdpEngine
        case TrainingEngineType.MEGATRON:
            # The import takes seconds, so only jobs that use it pay for it.
            from rlhf_runtime.engines.megatron.engine import MegatronEngine, ShardingOptions

            sharding = ShardingOptions(
                training.parallelism.sequence, training.distributed_optimizer
            )
            return partial(MegatronEngine, sharding=sharding)


def offload_methods(
    engine: TrainingEngine, depth: OffloadDepth
) -> Mapping[str, Callable[[CallInputs], Result]]:
    """Return the role's methods that load and offload its trainer, by name.

    Args:
        engine: the trainer.
        depth: how much of it is offloaded.
    """

    def load(_: CallInputs) -> Result:
        engine.load()
        return Result()

    def offload(_: CallInputs) -> Result:
        engine.offload(depth)
        return Result()

    return {LOAD: load, OFFLOAD: offload}
