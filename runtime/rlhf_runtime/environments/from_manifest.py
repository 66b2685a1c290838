"""Settings of environments from a manifest."""

from __future__ import annotations

from rlhf_api.quantity import quantity_value
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.environments.settings import EnvironmentSettings


def environment_settings(spec: RLHFJobSpec) -> EnvironmentSettings:
    """Return the settings of a job's environments.

    Args:
        spec: with rollout.environment.
    """
    environment = spec.rollout.environment
    assert environment is not None, "the job has no environment"
    single = {} if environment.entrypoint is None else {"": environment.entrypoint}
    limits, memory = environment.limits, environment.memory
    return EnvironmentSettings(
        entrypoints=environment.classes or single,
        parameters=environment.parameters,
        tools=environment.tools,
        call_seconds=limits.call_seconds,
        turn_seconds=limits.turn_seconds,
        episode_seconds=limits.episode_seconds,
        parallel_calls=limits.parallel_calls,
        concurrency=environment.concurrency,
        memory_bytes=None if memory is None else quantity_value(memory),
        allow_network=environment.allows_network,
        variables=environment.variables,
        seed=spec.schedule.seed,
    )
