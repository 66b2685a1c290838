"""Journal of conversations: results of their actions, by party and row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from rlhf_runtime.environments.results import EpisodeKey
from rlhf_runtime.journal.answers import AnswerJournal, CallAnswers, CallScope

DIGEST_BYTES = 8
# Characters of a question in messages.
SHOWN_CHARACTERS = 60
# A row's number is its own position.
_ALL_ROWS = range(1 << 62)

Record = Mapping[str, Any]
"""A result as a JSON value."""
PARTY = "environment"
"""Names of parties begin with it: `environment begin`, `environment turn 0`, `environment end`."""


@dataclass(frozen=True)
class RecordCounts:
    """Numbers of one call's records.

    num_read: results of earlier attempts that were read.
    num_different: actions that differ from those of earlier attempts.
    num_mismatches: conversations that were rebuilt with other answers.
    damage_notices: texts for users about damaged files.
    """

    num_read: int = 0
    num_different: int = 0
    num_mismatches: int = 0
    damage_notices: tuple[str, ...] = ()


@dataclass
class EpisodeRecords:
    """Results of all conversations; without a journal nothing is kept."""

    journal: AnswerJournal | None
    _answers: dict[CallScope, CallAnswers] = field(default_factory=dict)
    _mismatches: Counter[CallScope] = field(default_factory=Counter)

    @property
    def code(self) -> str:
        """Digest of the user's code."""
        return "" if self.journal is None else self.journal.code

    def find(self, key: EpisodeKey, party: str, question: str, shown: object) -> Record | None:
        """Return the result of an action in an earlier attempt; None without one.

        Args:
            key: of the conversation.
            party: name of the action.
            question: digest of all that the result depends on.
            shown: description of the action, for messages.

        Raises:
            JournalMismatch: an attempt with the same settings has done something else here.
        """
        answers = self._open(key.call)
        if answers is None:
            return None
        description = str(shown)[:SHOWN_CHARACTERS]
        record: Record | None = answers.find(party, key.row, lambda: question, description)
        return record

    def add(
        self, key: EpisodeKey, party: str, question: str, record: Record, is_final: bool = True
    ) -> None:
        """Write a result.

        Args:
            key: of the conversation.
            party: name of the action.
            question: digest of all that the result depends on.
            record: the result.
            is_final: False: it counts only if the call is completed.
        """
        answers = self._open(key.call)
        if answers is not None:
            answers.add(party, key.row, question, dict(record), is_final)

    def count_mismatch(self, call: CallScope) -> None:
        """Count a conversation that was rebuilt with other answers."""
        self._mismatches[call] += 1

    def complete(self, call: CallScope) -> RecordCounts:
        """Write the rest of a call's results, wait until all are on the disk, and count them.

        Raises:
            CannotRecord: some could not be written.
        """
        num_mismatches = self._mismatches.pop(call, 0)
        answers = self._answers.pop(call, None)
        if answers is None:
            return RecordCounts(num_mismatches=num_mismatches)
        answers.sync()
        counts = (answers.num_read, answers.num_different, num_mismatches)
        return RecordCounts(*counts, answers.damage_notices)

    def _open(self, call: CallScope) -> CallAnswers | None:
        if self.journal is None:
            return None
        if call not in self._answers:
            self._answers[call] = self.journal.call_answers(call, _ALL_ROWS)
        return self._answers[call]


def digest(*parts: Any) -> str:
    """Return a digest of JSON values."""
    content = json.dumps(parts, sort_keys=True, default=repr).encode()
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()
