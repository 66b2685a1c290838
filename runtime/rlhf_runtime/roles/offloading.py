"""The calls of a plan that bring a role's trainer to its devices, and give their memory back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_flow.planning.offloading import LOAD, OFFLOAD
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.roles.context import Result
from rlhf_runtime.workers.inputs import Inputs


def offloading(engine: TrainingEngine) -> Mapping[str, Callable[[Inputs], Result]]:
    """What such calls of a role run, by their methods' names."""

    def load(_: Inputs) -> Result:
        engine.load()
        return Result()

    def offload(_: Inputs) -> Result:
        engine.offload()
        return Result()

    return {LOAD: load, OFFLOAD: offload}
