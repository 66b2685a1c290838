"""Tools of other sources beside those of a job's environments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_runtime.environments.errors import InvalidEnvironment
from rlhf_runtime.environments.settings import (
    EnvironmentDescription,
    EnvironmentSettings,
    ToolFacts,
)
from rlhf_runtime.environments.tool_source import ToolSource


def tools_by_name(sources: Sequence[ToolSource]) -> dict[str, ToolSource]:
    """Return the source of every tool.

    Raises:
        InvalidEnvironment: two have a tool of one name.
    """
    by_name: dict[str, ToolSource] = {}
    for source in sources:
        for name in source.schemas:
            if name in by_name:
                raise _clash(name, by_name[name].title, source.title)
            by_name[name] = source
    return by_name


def with_sources(
    description: EnvironmentDescription,
    sources: Mapping[str, ToolSource],
    settings: EnvironmentSettings,
) -> EnvironmentDescription:
    """Return the description of environments with the tools of sources.

    Args:
        description: of the environments alone.
        sources: by tool.
        settings: with the classes, for messages.

    Raises:
        InvalidEnvironment: an environment has a tool of the same name as a source.
    """
    for name, facts in description.environments.items():
        if clashing := facts.tools.keys() & sources.keys():
            tool = min(clashing)
            own = settings.entrypoints.get(name, "rollout.environment.tools")
            raise _clash(tool, own, sources[tool].title)
    # Whatever has answered once is not asked again.
    return description.with_tools(
        {tool: ToolFacts(one.schemas[tool], repeats=False) for tool, one in sources.items()}
    )


def _clash(tool: str, one: str, other: str) -> InvalidEnvironment:
    return InvalidEnvironment(
        f"two tools have one name: got {tool} of {one} and of {other}, allowed one tool of a name, "
        "because the model calls it by that; rename one, or leave it out of the tools that the "
        "manifest chooses of a server"
    )
