"""Settings and description of a job's environments. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlhf_runtime.environments.tool_schema import ToolSchema

# Column of a row that chooses among several environments.
ENVIRONMENT_COLUMN = "environment"


@dataclass(frozen=True)
class EnvironmentSettings:
    """Environments of a job, and the limits of their conversations. Plain values.

    A conversation's time counts only while its environment works: never while the model generates
    or a place is waited for.
    """

    entrypoints: Mapping[str, str] = field(default_factory=dict)
    """`package.module:Class` by name; one with an empty name if rows do not choose."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of every class; JSON values."""
    tools: tuple[str, ...] = ()
    """Functions without state, `package.module:function`, that every conversation can call."""
    has_sources: bool = False
    """True if there are tools that do not run in the conversations' processes."""
    # The manifest has the defaults of limits.
    call_seconds: float = field(kw_only=True)
    """Limit of one call of a tool."""
    turn_seconds: float = field(kw_only=True)
    """Limit of all calls of a turn with its reward; also of the constructor with `reset`, and of
    `reward`."""
    episode_seconds: float = field(kw_only=True)
    """Limit of all the time in a conversation's environment."""
    parallel_calls: int = field(kw_only=True)
    """Maximum of a turn's async calls that run at once."""
    concurrency: int = field(kw_only=True)
    """Maximum of conversations that are live on a node."""
    memory_bytes: int | None = None
    """Limit of the allocations of a conversation's process. None: no limit."""
    answer_characters: int = 100_000
    """Maximum length of an answer; the middle of a longer one is left out."""
    allow_network: bool = False
    """True if tools may reach the network."""
    variables: tuple[str, ...] = ()
    """Names of further environment variables that tools get, such as the key of a service that
    they need."""
    seed: int = 0
    """Seed of the job."""

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON value."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EnvironmentSettings:
        """Read settings; the inverse of `to_json`."""
        sequences = {name: tuple(value[name]) for name in ("tools", "variables")}
        return EnvironmentSettings(**{**value, **sequences})


@dataclass(frozen=True)
class ToolFacts:
    """One tool, as the owner of processes knows it.

    repeats: True if its calls may be made again when a conversation is rebuilt.
    """

    schema: ToolSchema
    repeats: bool


@dataclass(frozen=True)
class ClassFacts:
    """One environment, as the owner of processes knows it."""

    tools: Mapping[str, ToolFacts]
    """Its methods and the functions without state, by name."""
    has_reset: bool = False
    has_reward: bool = False
    """True for a method and for an attribute `reward`."""
    has_turn_reward: bool = False
    has_snapshot: bool = False
    """True if it can be rebuilt by `restore`."""
    part_names: tuple[str, ...] = ()
    """Parts of its reward, if `reward` returns a TypedDict."""


@dataclass(frozen=True)
class EnvironmentDescription:
    """Environments of a job after their classes were imported."""

    environments: Mapping[str, ClassFacts]
    """By name; one with an empty name without classes, and if rows do not choose."""
    notices: tuple[str, ...] = ()
    """Facts that users should know, such as tools that this node cannot keep off the network."""

    @property
    def has_reset(self) -> bool:
        """True if some environment may add an observation to a prompt."""
        return any(facts.has_reset for facts in self.environments.values())

    def with_tools(self, tools: Mapping[str, ToolFacts]) -> EnvironmentDescription:
        """Return the description with further tools in every environment, behind its own."""
        environments = {
            name: replace(facts, tools={**facts.tools, **tools})
            for name, facts in self.environments.items()
        }
        return replace(self, environments=environments)

    def environment_of(self, row: Mapping[str, Any]) -> str | None:
        """Return the name of a row's environment; None if it names none."""
        if len(self.environments) == 1:
            (only,) = self.environments
            return only
        chosen = row.get(ENVIRONMENT_COLUMN)
        return chosen if isinstance(chosen, str) and chosen in self.environments else None

    def tool_schemas(self, environment: str) -> tuple[ToolSchema, ...]:
        """Return the schemas of an environment's tools, in the order of their definition."""
        return tuple(tool.schema for tool in self.environments[environment].tools.values())

    def to_json(self) -> dict[str, Any]:
        """Return the description as a JSON value."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EnvironmentDescription:
        """Read a description; the inverse of `to_json`."""
        environments = {
            name: ClassFacts(
                **{
                    **facts,
                    "tools": {key: ToolFacts(**tool) for key, tool in facts["tools"].items()},
                    "part_names": tuple(facts["part_names"]),
                }
            )
            for name, facts in value["environments"].items()
        }
        return EnvironmentDescription(environments, tuple(value["notices"]))
