"""Settings of environments from a manifest."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_api.quantity import quantity_value
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_servers.settings import HeaderSettings, ServerSettings
from rlhf_runtime.environments.tool_source import ToolSource


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
        has_sources=bool(environment.servers),
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


def tool_sources(spec: RLHFJobSpec, python_path: Sequence[str] = ()) -> list[ToolSource]:
    """Return the tools of a job that do not run in its conversations' processes, not started.

    Args:
        spec: with rollout.environment.
        python_path: folders of the user's code.
    """
    environment = spec.rollout.environment
    assert environment is not None, "the job has no environment"
    if not environment.servers:
        return []
    # The package of the protocol takes most of a second to import.
    from rlhf_runtime.environments.tool_servers.source import ServerTools

    return [
        ServerTools(
            ServerSettings(
                name,
                server.command or (),
                server.url or "",
                None
                if (header := server.header) is None
                else HeaderSettings(header.name, header.value_from_env, header.prefix),
                server.tools,
                environment.variables,
                environment.allows_network,
                tuple(python_path),
                call_seconds=environment.limits.call_seconds,
            )
        )
        for name, server in environment.servers.items()
    ]
