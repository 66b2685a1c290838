"""The conversation that `rlhf replay` shows, and its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from rlhf_cli.conversation_text import conversation_lines, indented
from rlhf_cli.run_samples import listed, numbers_text, pass_name
from rlhf_runtime.environments.recorded import (
    RecordedConversation,
    read_conversations,
    recorded_passes,
)
from rlhf_runtime.journal.folder import Position
from rlhf_runtime.telemetry.errors import NoConversation
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind
from rlhf_runtime.telemetry.visible_text import visible_text


@dataclass(frozen=True)
class ReplayQuery:
    """The conversation that is wanted."""

    step: int
    """A training step; for evaluations, the number of steps before it."""
    prompt: int
    """Id of its prompt."""
    sample: int
    """Its number among those of its prompt, from 0."""
    evaluation: bool = False

    @property
    def kind(self) -> SampleKind:
        """The kind of its pass."""
        return SampleKind.EVALUATION if self.evaluation else SampleKind.STEP


@dataclass(frozen=True)
class ReplayedConversation:
    """A conversation, and its scores if the run has samples of it."""

    recorded: RecordedConversation
    sample: ResponseSample | None

    def to_json(self, query: ReplayQuery) -> dict[str, Any]:
        """Return it as a JSON value."""
        sample = self.sample
        view = dataclasses.asdict(self.recorded.view)
        fields = dataclasses.asdict(self.recorded)
        del fields["view"]
        return {
            "kind": query.kind.value,
            "step": query.step,
            **fields,
            **view,
            "row_of_data": "" if sample is None else sample.row,
            "scores": {} if sample is None else dict(sample.scores),
            "advantage": None if sample is None else sample.advantage,
        }


def find_conversations(folder: RunFolder, query: ReplayQuery) -> list[ReplayedConversation]:
    """Return the conversations with a prompt and a number, at least one.

    Steps with several calls that generate, or several rounds, have several.

    Args:
        folder: of the run.
        query: the conversation that is wanted.

    Raises:
        NotARun: the folder contains no run.
        NoConversation: there is none; the message says which there are.
    """
    folder.require_run()
    sampled = [
        sample
        for sample in folder.read_samples(query.kind, query.step)
        if sample.conversation is not None
    ]
    position = Position(query.step, query.evaluation)
    recorded = read_conversations(folder.journal, position)
    if not recorded:
        recorded = [_of_sample(sample) for sample in sampled]
    if not recorded:
        raise NoConversation(
            f"no conversations of this pass: got {pass_name(query.kind, query.step)} of "
            f"{folder.path}, {_allowed_passes(folder)}"
        )
    of_prompt = [one for one in recorded if one.prompt_id == query.prompt]
    if not of_prompt:
        prompts = listed(sorted({one.prompt_id for one in recorded}))
        raise NoConversation(
            f"no conversations of this prompt: got prompt {query.prompt} in "
            f"{pass_name(query.kind, query.step)}, allowed {prompts}; give one of these"
        )
    chosen = [one for one in of_prompt if one.sample == query.sample]
    if not chosen:
        samples = listed(sorted({one.sample for one in of_prompt}))
        raise NoConversation(
            f"no such conversation of this prompt: got response {query.sample} to prompt "
            f"{query.prompt}, allowed {samples}; give one of these"
        )
    by_key = {(sample.prompt_id, sample.sample): sample for sample in sampled}
    # Samples are of the last call that generates.
    sample = by_key.get((query.prompt, query.sample))
    return [ReplayedConversation(one, sample if one is chosen[-1] else None) for one in chosen]


def _of_sample(sample: ResponseSample) -> RecordedConversation:
    """Return the conversation of a sample, where the journal has dropped it."""
    assert sample.conversation is not None
    return RecordedConversation(
        call="",
        round=0,
        repetition=0,
        row=0,
        prompt_id=sample.prompt_id,
        sample=sample.sample,
        prompt=sample.prompt,
        observation=None,
        view=sample.conversation,
        ended_by=sample.ended_by.value,
        seconds=(),
    )


def _allowed_passes(folder: RunFolder) -> str:
    passes = {
        (position.is_evaluation, position.step)
        for position in recorded_passes(folder.journal)
        if read_conversations(folder.journal, position)
    }
    for kind in SampleKind:
        passes |= {
            (kind is SampleKind.EVALUATION, step)
            for step in folder.sampled_steps(kind)
            if any(sample.conversation for sample in folder.read_samples(kind, step))
        }
    if not passes:
        return (
            "which has none: the job has no rollout.environment, or no step has ended yet; give "
            "the folder of a run with tools"
        )
    steps = sorted(step for is_evaluation, step in passes if not is_evaluation)
    evaluations = sorted(step for is_evaluation, step in passes if is_evaluation)
    parts = [f"step {listed(steps)}"] if steps else []
    parts += [f"--evaluation after step {listed(evaluations)}"] if evaluations else []
    return (
        f"allowed {' or '.join(parts)}, as the journal keeps steps since the oldest checkpoint and "
        "the samples a few of all; give one of these"
    )


def blocks(conversations: Sequence[ReplayedConversation], query: ReplayQuery) -> Iterator[Group]:
    """Yield the text of every conversation for a terminal."""
    for one in conversations:
        recorded, sample = one.recorded, one.sample
        title = f"{pass_name(query.kind, query.step)}, prompt {query.prompt}"
        title += f", response {query.sample}"
        lines = [Text(title, "bold"), Text(_facts(recorded), "dim")]
        if sample is not None:
            lines += [Text(numbers_text(sample), "dim"), Text(visible_text(sample.row), "dim")]
        if recorded.prompt:
            lines += [Text("prompt", "dim"), Text(indented(recorded.prompt))]
        if recorded.observation is not None:
            lines += [Text("observation of reset", "dim"), Text(indented(recorded.observation))]
        yield Group(*lines, *conversation_lines(recorded.view), Text())


def _facts(one: RecordedConversation) -> str:
    """Describe where a conversation belongs, and how it ended."""
    where = [f"call {one.call}"] if one.call else ["of the samples, shortened"]
    where += [f"round {one.round}"] if one.round else []
    where += [f"pass {one.repetition + 1}"] if one.repetition else []
    num_turns = one.view.num_turns
    end = one.ended_by or ("failed" if one.view.failure else "interrupted")
    facts = [*where, f"{num_turns} turn{'' if num_turns == 1 else 's'}", f"ended by {end}"]
    if one.seconds:
        facts.append(f"{sum(one.seconds):.3g} s in the environment")
    return ", ".join(facts)
