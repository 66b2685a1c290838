"""Conversations: environments, tools, and their limits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import (
    Contract,
    Count,
    Entrypoint,
    Fraction,
    Identifier,
    NonNegativeFloat,
)
from rlhf_api.quantity import Quantity
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.algorithm import ParameterValue
from rlhf_api.spec.tool_servers import ToolServer, VariableName

MAX_TOOLS = 64
MAX_CLASSES = 16
MAX_SERVERS = 16


class ToolFormat(StrEnum):
    """Text form of tool calls that a model writes."""

    HERMES = "Hermes"
    """JSON between <tool_call> and </tool_call>: Hermes, Qwen 2.5, Qwen 3."""
    LLAMA = "Llama"
    """A JSON object with name and parameters, and nothing else: Llama 3.1 to 3.3."""
    MISTRAL = "Mistral"
    """[TOOL_CALLS] and a list of objects, or name[ARGS]{...}: Mistral."""
    GEMMA = "Gemma"
    """call:NAME{key:value} between tags: Gemma 4, FunctionGemma."""
    DEEPSEEK = "DeepSeek"
    """Names and JSON between special tokens: DeepSeek V3, R1, V3.1."""
    HARMONY = "Harmony"
    """Messages to functions.NAME: gpt-oss."""
    QWEN_XML = "QwenXML"
    """<function=NAME> with <parameter=NAME>: Qwen3-Coder, Qwen 3.5."""
    PYTHON = "Python"
    """Lines with a call, such as add(1, 2); needs no chat template."""


class CutSide(StrEnum):
    """Part of a long answer that is left out."""

    END = "End"
    """The end."""
    START = "Start"
    """The beginning."""
    MIDDLE = "Middle"
    """The middle."""


class ConversationOrder(StrEnum):
    """Time at which an answer of tools enters generation."""

    EXACT = "Exact"
    """A number of decode steps after the end of its turn. The same manifest gives the same
    numbers."""
    FASTEST = "Fastest"
    """At once. Which sequences are decoded together then depends on how fast tools answer, so
    numbers may differ in their last bits."""


class ConversationLimits(Contract):
    """Limits of one conversation. Times are those that its tools take, not those of generation."""

    turns: Annotated[int, Field(ge=1, le=1000)] = 8
    """Largest number of turns of the model."""
    answer_tokens: Count = 512
    """Longest answer of a tool; a longer one is cut."""
    answer_cut: CutSide = CutSide.END
    """Part of a longer answer that is left out: End, Start or Middle."""
    call_seconds: Count = 10
    """Longest time of one call."""
    turn_seconds: Count = 60
    """Longest time of all calls of a turn, of reset, and of reward."""
    episode_seconds: Count = 600
    """Longest time of all calls of a conversation, of reset and of reward."""
    parallel_calls: Annotated[int, Field(ge=1, le=64)] = 8
    """Calls of one turn that run at the same time, where methods are async."""


class TurnCredit(Contract):
    """Use of the rewards of turns, which the class's method turn_reward returns.

    PPO, SafeRLHF, ReMax and REINFORCE++ without groups add them to the rewards of tokens, each on
    the last token of its turn. Others add to the advantage of every turn the discounted rewards
    from it on, minus their mean over the valid samples of the prompt that have this turn.
    """

    weight: float = 1.0
    """Factor of the rewards of turns."""
    discount: Fraction = 1.0
    """Factor of a reward for each turn that lies between. Algorithms that add rewards to tokens
    have gamma instead."""


def _has_tools(spec: EnvironmentSpec) -> list[Violation]:
    return violation_if(not (spec.entrypoint or spec.classes or spec.tools or spec.servers))


def _one_kind_of_class(spec: EnvironmentSpec) -> list[Violation]:
    return violation_if(spec.entrypoint is not None and bool(spec.classes))


def _expected_turns_are_allowed(spec: EnvironmentSpec) -> list[Violation]:
    expected, limit = spec.expected_turns, spec.limits.turns
    is_more = expected is not None and expected > limit
    return violation_if(is_more, expected, f"at most limits.turns, {limit}")


def _expected_tools_are_allowed(spec: EnvironmentSpec) -> list[Violation]:
    expected, limit = spec.expected_tool_seconds, spec.limits.turn_seconds
    return violation_if(expected > limit, expected, f"at most limits.turnSeconds, {limit}")


class EnvironmentSpec(Contract):
    """The environment of conversations: a class with tools, functions, or servers of tools."""

    validations: ClassVar = (
        Rule(
            holds="has(self.entrypoint) || has(self.classes) && size(self.classes) > 0 || "
            "has(self.tools) && size(self.tools) > 0 || "
            "has(self.servers) && size(self.servers) > 0",
            what="an environment without tools",
            allowed="entrypoint, classes, tools or servers",
            do="name a class in entrypoint, functions in tools, or servers of tools",
            check=_has_tools,
        ),
        Rule(
            holds="!has(self.entrypoint) || !has(self.classes) || size(self.classes) == 0",
            what="both one class for all rows and classes by name",
            allowed="entrypoint or classes",
            do="remove one of them",
            field=".classes",
            check=_one_kind_of_class,
        ),
        Rule(
            holds="!has(self.expectedTurns) || self.expectedTurns <= double(self.limits.turns)",
            what="more turns on average than at most",
            allowed="at most limits.turns",
            do="lower it, or raise limits.turns",
            field=".expectedTurns",
            check=_expected_turns_are_allowed,
        ),
        Rule(
            holds="self.expectedToolSeconds <= double(self.limits.turnSeconds)",
            what="calls of a turn that take longer on average than at most",
            allowed="at most limits.turnSeconds",
            do="lower it, or raise limits.turnSeconds",
            field=".expectedToolSeconds",
            check=_expected_tools_are_allowed,
        ),
    )

    entrypoint: Entrypoint | None = None
    """The class as `package.module:Class`. Each conversation has an object of its own; public
    methods with type hints and a docstring are tools. Optional methods: reset(**row), reward(),
    turn_reward(), snapshot() and restore(). Default: none."""
    classes: Annotated[dict[Identifier, Entrypoint], Field(max_length=MAX_CLASSES)] = {}
    """Several classes by name, instead of entrypoint; the column environment of a row names its
    class. Default: none."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Passed to the class as keyword arguments."""
    tools: Annotated[tuple[Entrypoint, ...], Field(max_length=MAX_TOOLS)] = ()
    """Functions as `package.module:function` that are tools, too. Default: none."""
    servers: Annotated[dict[Identifier, ToolServer], Field(max_length=MAX_SERVERS)] = {}
    """Servers of the Model Context Protocol (MCP) by name, whose tools stand beside the others.
    Each environment host has one connection to a server, which all its conversations share.
    Default: none."""
    tool_format: ToolFormat | None = None
    """Text form of tool calls. Default: that of the actor's chat template."""
    limits: ConversationLimits = ConversationLimits()
    """Limits of one conversation."""
    turn_credit: TurnCredit | None = None
    """Use of the rewards of turns. Default: they are recorded only."""
    order: ConversationOrder = ConversationOrder.EXACT
    """Time at which an answer of tools enters generation: Exact or Fastest."""
    delay_steps: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Decode steps from the last one of a turn to the first one of the next turn, with order:
    Exact. Generation waits only for answers that take longer."""
    concurrency: Annotated[int, Field(ge=1, le=65536)] = 256
    """Largest number of conversations of a node at the same time, each with a process; others
    wait."""
    expected_turns: Annotated[float, Field(ge=1.0, le=1000.0)] | None = None
    """Mean number of turns of a conversation, for estimates of times. Default: the middle of 1 and
    limits.turns."""
    expected_tool_seconds: NonNegativeFloat = 0.0
    """Mean time of all calls of a turn, for estimates of times."""
    expected_sampled: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of a response's tokens that the model samples, for estimates of times; the others are
    answers. Default: answers have half of limits.answerTokens, and at most half of the response."""
    memory: Quantity | None = None
    """Memory that a conversation's process may allocate, such as 1Gi. Default: no limit."""
    allows_network: bool = False
    """If true, tools may use the network. Environments are no sandbox in either case: they run as
    the job's user."""
    variables: Annotated[tuple[VariableName, ...], Field(max_length=64)] = ()
    """Names of environment variables that tools get, such as that of a service's key. They get few
    others. Default: none."""
    max_failed_share: Fraction = 0.5
    """Largest share of a step's conversations that may fail; more end the job."""
