"""Table of the built-in algorithms: the parts of their steps, from their traces."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any

from rlhf_api.enum_members import enum_members
from rlhf_api.plan import GraphName
from rlhf_api.spec.algorithm import SETTINGS, AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.jobs.job_graphs import trace_algorithms
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.trace.graph import Graph

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Built-in algorithms

What `spec.algorithm.type` can name, made from the traces of their steps by `make generate`. Lines
are those of the step function, without its signature and its docstring. Calls are those with
default settings, float32 and one update of a step; with a KL penalty `reference.log_probs` is
added, and in bfloat16 or with several updates `actor.log_probs`. Their settings are in
[rlhfjob.md](rlhfjob.md), runnable manifests in [examples](../../examples).

| type | what it is | step | lines | roles with a model | rewards | calls |
|---|---|---|---|---|---|---|
"""


def algorithms() -> str:
    """Page in Markdown."""
    about = {member.value: member.description for member in enum_members(AlgorithmType)}
    return HEAD + "".join(f"{_row(kind, about[kind.value])}\n" for kind in SETTINGS)


def _row(kind: AlgorithmType, about: str) -> str:
    settings = SETTINGS[kind]
    traced = trace_algorithms(_smallest_job(kind))[GraphName.STEP]
    file = Path(inspect.getfile(type(traced.algorithm))).relative_to(ROOT).as_posix()
    cells = (
        f"`{kind.value}`",
        about.rstrip("."),
        f"[{Path(file).name}](../../{file})",
        str(_step_lines(type(traced.algorithm))),
        ", ".join(f"`{role}`" for role in settings.roles),
        ", ".join(f"`{role}`" for role in settings.reward_roles) or "none",
        _calls(traced.graph),
    )
    return f"| {' | '.join(cells)} |"


def _step_lines(algorithm: type[Algorithm]) -> int:
    """Count lines of a step's body, without docstring and blank lines."""
    source = textwrap.dedent(inspect.getsource(algorithm.step))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    # Lines of text, not statements: comments count.
    _docstring, first, *_ = function.body
    lines = source.splitlines()[first.lineno - 1 :]
    return sum(bool(line.strip()) for line in lines)


def _calls(graph: Graph) -> str:
    """Calls in order, with the count of repeated ones."""
    # A site's id has a number if the same method is called at several sites.
    names = [call.id.partition("#")[0] for call in graph.calls]
    return ", ".join(
        f"`{name}`" + (f" x {names.count(name)}" if names.count(name) > 1 else "")
        for name in dict.fromkeys(names)
    )


def _smallest_job(kind: AlgorithmType) -> RLHFJob:
    """Manifest with only the fields that the algorithm requires."""
    settings = SETTINGS[kind]
    first, *_ = settings.roles
    verifier = {"entrypoint": "verifiers:score"}
    rewards: list[dict[str, Any]] = [
        {"name": role, "role": role, "function": verifier} for role in settings.reward_roles
    ]
    train: dict[str, Any] = {"path": "rows.jsonl"}
    train |= {"preferences": {}} if settings.takes_pairs else {}
    train |= {"answerField": "answer"} if settings.takes_answers else {}
    return RLHFJob.model_validate(
        {
            "apiVersion": "rlhf-operator.dev/v1alpha1",
            "kind": "RLHFJob",
            "metadata": {"name": "smallest"},
            "spec": {
                "algorithm": {"type": kind.value},
                "models": {first: {"source": {"builtin": "TinyLlama"}}},
                "data": {"train": train},
                "rewards": rewards,
                "rollout": {"samplesPerPrompt": 2 if settings.compares_samples else 1},
                "schedule": {"steps": 10, "promptsPerStep": 16},
            },
        }
    )
