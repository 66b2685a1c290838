"""The calls of a plan that bring a role's trainer to its devices, and give their memory back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_api.calls import LOAD, OFFLOAD
from rlhf_api.plan import OffloadDepth
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.roles.context import Result
from rlhf_runtime.workers.inputs import Inputs


def offloading(
    engine: TrainingEngine, depth: OffloadDepth
) -> Mapping[str, Callable[[Inputs], Result]]:
    """What such calls of a role run, by their methods' names.

    Args:
        engine: its trainer.
        depth: how much of it leaves.
    """

    def load(_: Inputs) -> Result:
        engine.load()
        return Result()

    def offload(_: Inputs) -> Result:
        engine.offload(depth)
        return Result()

    return {LOAD: load, OFFLOAD: offload}
