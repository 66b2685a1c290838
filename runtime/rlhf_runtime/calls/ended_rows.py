"""Message of a generating rank to a reward host: responses that ended while others go on."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_api.plan import GraphName


class ScoreCall(NamedTuple):
    """A call that scores the responses of a call that generates, and reads nothing else."""

    id: str
    role: str


@dataclass(frozen=True)
class EndedRows:
    """Rows with a complete response, as the calls that score them will get them."""

    calls: tuple[ScoreCall, ...]
    step: int
    graph: GraphName
    repetition: int
    """Earlier passes of this graph and step."""
    round: int
    """Round of `flow.repeat`, from 0."""
    slice_rows: range | None
    """All rows that a call scores together with them. None: they depend on responses that have not
    ended."""
    rows: tuple[int, ...]
    records: tuple[str, ...]
    """The column `record` of the rows."""
    texts: tuple[str, ...]
    """The column `response_text`."""
    finished: tuple[bool, ...]
    episodes: tuple[str, ...] = ()
    """The column `episode`; empty if there are no conversations."""

    def to_bytes(self) -> bytes:
        """Serialize."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def from_bytes(message: bytes) -> EndedRows:
        """Deserialize; the inverse of `to_bytes`."""
        ended = pickle.loads(message)
        assert isinstance(ended, EndedRows)
        return ended
