"""Checks the environments of a job: imports them in a child process and connects to servers of
tools, as environment hosts do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rlhf_api.problems import FieldPath
from rlhf_api.spec.conversation import EnvironmentSpec, ToolFormat
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.data.tool_calls.job_dialogues import job_dialogues
from rlhf_runtime.environments.environment_class import REWARD_METHODS
from rlhf_runtime.environments.episodes import describe_environment
from rlhf_runtime.environments.errors import (
    ImportFailed,
    ImportTimedOut,
    InvalidEnvironment,
    ServerUnusable,
)
from rlhf_runtime.environments.from_manifest import environment_settings, tool_sources
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentDescription
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_schema import ToolSchema
from rlhf_runtime.models.errors import ContextTooShort
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.python_path import NO_CODE, PythonPath

SECTION: FieldPath = ("spec", "rollout", "environment")


def check_environments(
    spec: RLHFJobSpec,
    seconds: float,
    one_machine: bool,
    findings: Findings,
    python_path: PythonPath = NO_CODE,
) -> EnvironmentDescription | None:
    """Import the environments, read the tools of servers, and check rewards of environments.

    Args:
        spec: of a job with environments, whose code is on the path.
        seconds: limit of the import.
        one_machine: True if they will run on this machine. Elsewhere a failed import may succeed,
            and a server may be reached.
        findings: collects errors, warnings, and environments whose import gave no result.
        python_path: the user's code and its packages, for programs of servers.

    Returns:
        The environments and their tools; None: they are not known here.
    """
    environment = spec.rollout.environment
    assert environment is not None, "the job has no environment"
    description = None
    with findings.about(*SECTION):
        try:
            sources = tool_sources(spec, python_path.folders)
            description = describe_environment(
                environment_settings(spec), python_path.code, seconds, sources
            )
        except ImportTimedOut:
            findings.unchecked.append("rollout.environment: its module loads slowly")
        except ServerUnusable as error:
            if one_machine:
                raise
            first, *_ = str(error).splitlines()
            findings.unchecked.append(f"rollout.environment.servers: {first}")
        except InvalidEnvironment as error:
            if one_machine or not isinstance(error, ImportFailed):
                raise error.at(*_field_of(environment, error.entrypoint)) from None
            *_, last = str(error).splitlines()
            findings.unchecked.append(f"rollout.environment: its import fails here: {last}")
    if description is None:
        return None
    findings.warnings += description.notices
    for number, reward in enumerate(spec.rewards):
        if reward.environment is not None:
            with findings.about("spec", "rewards", number, "environment"):
                findings.warnings += _check_reward(reward, environment, description)
    return description


def _field_of(environment: EnvironmentSpec, entrypoint: str) -> FieldPath:
    """Return the field that names a class or a function."""
    if entrypoint in environment.tools:
        return *SECTION, "tools", environment.tools.index(entrypoint)
    for name, kind in environment.classes.items():
        if kind == entrypoint:
            return *SECTION, "classes", name
    return SECTION if environment.entrypoint is None else (*SECTION, "entrypoint")


def _check_reward(
    reward: RewardSpec, environment: EnvironmentSpec, description: EnvironmentDescription
) -> Iterator[str]:
    """Check that environments give a reward with its parts; yield warnings.

    Raises:
        InvalidEnvironment: none gives a reward, or one names its parts otherwise.
    """
    classes = description.environments
    without = [name for name, facts in classes.items() if not facts.has_reward]
    if len(without) == len(classes):
        raise InvalidEnvironment(
            f"the environment gives no reward: got no method {REWARD_METHODS[0]} in "
            f"{_titles(environment, without)}, allowed a class with {REWARD_METHODS[0]}(self) -> "
            "float; add the method, or score by a function instead"
        )
    if without and not reward.is_partial:
        yield (
            f"the reward {reward.name} has no score for conversations of "
            f"{_titles(environment, without)}: got no method {REWARD_METHODS[0]}; add it, or set "
            "where to the rows of the others"
        )
    for name, facts in classes.items():
        _check_parts(reward, _titles(environment, [name]), facts)


def _check_parts(reward: RewardSpec, title: str, facts: ClassFacts) -> None:
    """Check that the named parts of a reward are those of a class, if it declares them.

    Raises:
        InvalidEnvironment: they are not.
    """
    assert reward.environment is not None
    wanted, known = reward.environment.parts, facts.part_names
    if not known:
        return
    if not wanted:
        raise InvalidEnvironment(
            f"the reward of {title} has several parts: got a map with {', '.join(known)}, allowed "
            "a number where parts is not set; give their weights in parts"
        )
    if unknown := [part for part in wanted if part not in known]:
        raise InvalidEnvironment(
            f"the reward of {title} has no such part: got {unknown[0]}, allowed "
            f"{', '.join(known)}; correct parts, or the class"
        )


def check_dialogues(
    spec: RLHFJobSpec,
    tokenizer: TextTokenizer,
    description: EnvironmentDescription,
    findings: Findings,
) -> Mapping[str, ToolDialogue]:
    """Check that the model can write calls and read answers, and describe its tools.

    Args:
        spec: of a job with environments.
        tokenizer: of the policy.
        description: of the environments.
        findings: collects errors, facts and warnings.

    Returns:
        The dialogues by environment; empty: they cannot be used.
    """
    environment = spec.rollout.environment
    assert environment is not None, "the job has no environment"
    dialogues: Mapping[str, ToolDialogue] = {}
    with findings.about(*SECTION):
        dialogues = job_dialogues(spec, tokenizer, description)
        _check_names(dialogues, description)
    for name, dialogue in dialogues.items():
        schemas = description.tool_schemas(name)
        tools = ", ".join(map(_signature, schemas))
        findings.facts.append(
            f"rollout.environment: the tools of {_titles(environment, [name])} are {tools}; calls "
            f"are written in the format {dialogue.format.value}"
        )
    if environment.limits.turns == 1:
        findings.warnings.append(
            "no tool is ever called: got rollout.environment.limits.turns = 1, allowed 2 or more, "
            "since calls of the last turn are not made; raise it"
        )
    elif dialogues:
        with findings.about("spec", "rollout", "maxResponseTokens"):
            findings.facts += _check_lengths(spec, environment, description, dialogues)
    return dialogues


def _check_names(
    dialogues: Mapping[str, ToolDialogue], description: EnvironmentDescription
) -> None:
    """Check that calls can be written: servers choose any names.

    Raises:
        InvalidEnvironment: a name cannot be written.
    """
    for environment, dialogue in dialogues.items():
        for name in description.environments[environment].tools:
            if dialogue.format is ToolFormat.PYTHON and not name.isidentifier():
                raise InvalidEnvironment(
                    f"a tool has no name of Python: got {name}, allowed letters, digits and "
                    "underscores where calls are lines such as add(1, 2); choose the server's "
                    "other tools in servers.NAME.tools, or set another toolFormat"
                ).at(*SECTION, "servers")


def _check_lengths(
    spec: RLHFJobSpec,
    environment: EnvironmentSpec,
    description: EnvironmentDescription,
    dialogues: Mapping[str, ToolDialogue],
) -> Iterator[str]:
    """Check that a response has space for two turns; yield facts.

    Raises:
        ContextTooShort: it has not.
    """
    limit = spec.rollout.max_response_tokens
    nothing = np.zeros(0, dtype=np.int32)
    for name, dialogue in dialogues.items():
        call = ToolCall(next(iter(description.environments[name].tools)), {})
        # A token of the turn with the call, the shortest answer, a token of the next turn.
        shortest = len(dialogue.answer_tokens(nothing, [call], [""])) + 2
        if shortest > limit:
            raise ContextTooShort(
                "a response has no space for two turns: got rollout.maxResponseTokens = "
                f"{limit}, allowed at least {shortest}, since an empty answer of a tool of "
                f"{_titles(environment, [name])} takes {shortest - 2} tokens; raise it"
            )
    if environment.limits.answer_tokens >= limit:
        yield (
            f"rollout.environment: an answer of {limit:,} tokens ends its conversation "
            f"(rollout.maxResponseTokens), since limits.answerTokens = "
            f"{environment.limits.answer_tokens:,} does not cut it before"
        )


def title_of(environment: EnvironmentSpec, name: str) -> str:
    """Return the title of an environment: its entrypoint, if it is a class."""
    functions = "tools" if environment.tools else "servers"
    return (
        environment.classes.get(name)
        or environment.entrypoint
        or f"rollout.environment.{functions}"
    )


def _titles(environment: EnvironmentSpec, names: list[str]) -> str:
    return ", ".join(title_of(environment, name) for name in names)


def _signature(schema: ToolSchema) -> str:
    function = schema["function"]
    return f"{function['name']}({', '.join(function['parameters']['properties'])})"
