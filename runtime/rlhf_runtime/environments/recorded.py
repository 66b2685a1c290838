"""Conversations of a step as the journal has them, for readers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_runtime.environments.records import PARTY, Record, digest
from rlhf_runtime.journal.entries import Entry, read_entries
from rlhf_runtime.journal.folder import Position, pass_folder, pass_folders
from rlhf_runtime.telemetry.conversations import (
    ConversationTurn,
    ConversationView,
    ToolUse,
    call_text,
)

_TURN = re.compile(rf"{PARTY} turn ([0-9]+)")

# Of a conversation: repetition of the pass, call, round, row.
Identity = tuple[str | int, ...]
Entries = dict[str, list[Entry]]
"""Entries of a conversation by party, those of later attempts last."""


@dataclass(frozen=True)
class RecordedConversation:
    """A conversation.

    call: that generated it.
    round: of `flow.repeat`, from 0.
    repetition: earlier passes of its step.
    row: in the call's batch.
    prompt_id: of its prompt.
    sample: its number among those of its prompt, from 0.
    prompt: text of the prompt, shortened.
    observation: text that `reset` returned; None without one.
    view: its turns and rewards.
    ended_by: reason for its end; empty: it was interrupted, or it failed.
    seconds: time in its environment, by action: begin, the turns, the end.
    """

    call: str
    round: int
    repetition: int
    row: int
    prompt_id: int
    sample: int
    prompt: str
    observation: str | None
    view: ConversationView
    ended_by: str
    seconds: tuple[float, ...]


def recorded_passes(journal: Path) -> list[Position]:
    """Return the passes whose answers a journal has, in order."""
    return sorted(pass_folders(journal))


def read_conversations(journal: Path, position: Position) -> list[RecordedConversation]:
    """Return the conversations of a pass, in the order of calls and rows.

    Where several attempts have run it, each is that of the last one. Their notes must be those of
    environment hosts.

    Args:
        journal: folder of the journal.
        position: of the pass.
    """
    by_identity: dict[Identity, Entries] = {}
    # The names begin with the number of the attempt.
    for path in sorted(pass_folder(journal, position).glob("*.jsonl")):
        for entry in read_entries(path.read_bytes()):
            if entry is None:
                continue
            *call, party, row = entry.key
            if str(party).startswith(f"{PARTY} "):
                parties = by_identity.setdefault((*call, row), {})
                parties.setdefault(str(party), []).append(entry)
    return [
        _conversation(identity, by_identity[identity])
        for identity in sorted(by_identity, key=lambda one: (one[0], str(one[1]), *one[2:]))
        if f"{PARTY} begin" in by_identity[identity]
    ]


def _conversation(identity: Identity, entries: Entries) -> RecordedConversation:
    repetition, call, round, row = identity
    begin = entries[f"{PARTY} begin"][-1]
    chain = [begin, *_following(begin, entries)]
    notes = begin.answer["notes"]
    end = next((entry for entry in chain if entry.key[-2] == f"{PARTY} end"), None)
    turns = [_turn(entry) for entry in chain if _TURN.fullmatch(str(entry.key[-2]))]
    # The journal has turns with calls only; of the last one the end has the text.
    if end is not None and end.answer["notes"]["num_turns"] > len(turns):
        turns.append(ConversationTurn(len(turns), end.answer["notes"]["text"]))
    failure = next((entry.answer["failure"] for entry in chain if "failure" in entry.answer), None)
    reward = None if end is None else end.answer.get("reward")
    return RecordedConversation(
        call=str(call),
        round=int(round),
        repetition=int(repetition),
        row=int(row),
        prompt_id=notes["prompt_id"],
        sample=notes["sample"],
        prompt=notes["prompt"],
        observation=begin.answer.get("observation"),
        view=ConversationView(
            tuple(turns), reward, "" if failure is None else ": ".join(failure), len(turns)
        ),
        ended_by="" if end is None else end.answer.get("reason", ""),
        seconds=tuple(entry.answer["seconds"] for entry in chain),
    )


def _following(begin: Entry, entries: Entries) -> Iterator[Entry]:
    """Yield the entries behind the begin that belong to the same attempt, in order."""
    if "failure" in begin.answer:
        return
    # A question contains all that came before it, so entries of other attempts do not fit.
    past = digest(begin.question, begin.answer["observation"])
    turns = {int(match[1]): party for party in entries if (match := _TURN.fullmatch(party))}
    for number in sorted(turns):
        entry = _last(entries[turns[number]], past, number)
        if entry is None:
            break
        yield entry
        if "failure" in entry.answer:
            return
        past = digest(entry.question, entry.answer["answers"], entry.answer["reward"])
    question = digest(past, "end")
    yield from [e for e in entries.get(f"{PARTY} end", []) if e.question == question][-1:]


def _last(candidates: Sequence[Entry], past: str, number: int) -> Entry | None:
    """Return the last entry of a turn that follows what came before."""
    for entry in reversed(candidates):
        if entry.question == digest(past, number, entry.answer["notes"]["calls"]):
            return entry
    return None


def _turn(entry: Entry) -> ConversationTurn:
    record: Mapping[str, Any] = entry.answer
    match = _TURN.fullmatch(str(entry.key[-2]))
    assert match is not None
    notes: Record = record["notes"]
    # A turn that failed has neither.
    answers, wrong = record.get("answers", []), record.get("wrong", [])
    uses = tuple(
        ToolUse(
            # A malformed call is its text and the problem.
            call_text(name, arguments)
            if isinstance(arguments, Mapping)
            else name or "malformed call",
            answers[index] if index < len(answers) else None,
            index in wrong,
        )
        for index, (name, arguments) in enumerate(notes["calls"])
    )
    return ConversationTurn(int(match[1]), notes["text"], uses, record.get("reward"))
