"""Samples of what a run wrote: some responses of steps and evaluations, with prompts and scores.

The folder `samples/` has one file of JSON lines for each step and evaluation with samples. A step
that is trained again replaces its file, so a resumed run has the files of an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.telemetry.conversations import ConversationView, view_from_json
from rlhf_runtime.telemetry.visible_text import visible_text

# Limits of the files' sizes. A file has at most MAX_SAMPLES lines with at most 8000 characters of
# texts, 14,000 with a conversation: in UTF-8 one to four bytes each, six for control characters,
# which JSON escapes.
MAX_FILES = 200
MAX_SAMPLES = 16
MAX_SAMPLES_PER_PROMPT = 4
MAX_PROMPT_CHARACTERS = 2000
MAX_RESPONSE_CHARACTERS = 6000


SAMPLES = "evaluation/samples"
"""Name of trackers' tables of samples."""


class SampleKind(StrEnum):
    """The kind of pass that sampled a response."""

    STEP = "step"
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class ResponseSample:
    """A response to a prompt. Long texts are shortened."""

    kind: SampleKind
    step: int
    """The training step; for an evaluation, the number of steps before it."""
    prompt_id: int
    """Equal for all responses to a prompt of the same data."""
    sample: int
    """Number of the response among those to its prompt, from 0."""
    row: str
    """The data's row with the prompt: source and number; empty if unknown."""
    prompt: str
    response: str
    tokens: int
    """Tokens of the response, its end token included."""
    ended_by: StopReason
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """By name: that of a role for the sum of its rewards, `role/reward` for one of several. None:
    no score counts."""
    advantage: float | None = None
    """Mean over the response's tokens that are trained on. None: the pass estimates none."""
    conversation: ConversationView | None = None
    """The response turn by turn. None: it has one turn and no tools."""

    @property
    def score(self) -> float | None:
        """The first score."""
        return next(iter(self.scores.values()), None)


def is_sampled(spec: RLHFJobSpec, kind: SampleKind, step: int) -> bool:
    """True if samples of a pass are written.

    Args:
        spec: of the job.
        kind: of the pass.
        step: the training step; for an evaluation, the number of steps before it.
    """
    every, last = spec.telemetry.samples_every_steps, spec.schedule.steps
    if every == 0:
        return False
    if kind is SampleKind.EVALUATION:
        every = spec.schedule.evaluate_every_steps
        return every == 0 or step == last or step % _stride(every, last) == 0
    return step == 1 or step % _stride(every, last) == 0


def _stride(every: int, last: int) -> int:
    """Return a multiple of an interval that gives at most MAX_FILES."""
    return every * -(-last // (every * MAX_FILES))


def to_lines(samples: Iterable[ResponseSample]) -> bytes:
    """The lines of a file, in UTF-8."""
    lines = (
        json.dumps(dataclasses.asdict(sample), allow_nan=False, ensure_ascii=False)
        for sample in samples
    )
    # UTF-8 has no lone surrogates; the escape of Python is JSON's, too.
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def from_json(line: Mapping[str, Any]) -> ResponseSample:
    """The sample of a line. Fields of newer releases are ignored.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: the object is no sample.
    """
    scores, conversation = _typed(line.get("scores", {}), dict), line.get("conversation")
    return ResponseSample(
        kind=SampleKind(line["kind"]),
        step=_typed(line["step"], int),
        prompt_id=_typed(line["prompt_id"], int),
        sample=_typed(line["sample"], int),
        row=_typed(line["row"], str),
        prompt=_typed(line["prompt"], str),
        response=_typed(line["response"], str),
        tokens=_typed(line["tokens"], int),
        ended_by=StopReason(line["ended_by"]),
        scores={name: _number(score) for name, score in scores.items()},
        advantage=_number(line.get("advantage")),
        conversation=None if conversation is None else view_from_json(conversation),
    )


Value = TypeVar("Value")


def _typed(value: Any, kind: type[Value]) -> Value:
    # `True` is an int, too.
    if type(value) is not kind:
        raise TypeError(f"a value of a sample: got {value!r}, allowed {kind.__name__}")
    return value


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value) if type(value) is int else _typed(value, float)
    if not math.isfinite(number):
        raise ValueError(f"a number of a sample: got {value}, allowed finite numbers and null")
    return number


@dataclass(frozen=True)
class SampleTable:
    """Samples as a table for trackers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]


def sample_table(samples: Sequence[ResponseSample]) -> SampleTable:
    """The table of some samples; a score that one of them lacks is None."""
    scores = tuple(dict.fromkeys(name for sample in samples for name in sample.scores))
    rows = tuple(
        (
            *(visible_text(text) for text in (sample.prompt, sample.response)),
            *(sample.scores.get(name) for name in scores),
            sample.tokens,
            sample.ended_by.value,
            sample.prompt_id,
            visible_text(sample.row),
        )
        for sample in samples
    )
    return SampleTable(
        ("prompt", "response", *scores, "tokens", "ended by", "prompt id", "row"), rows
    )
