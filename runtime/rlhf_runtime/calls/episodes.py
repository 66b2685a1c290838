"""Messages between a generating rank and the environment host of its node."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.plan import GraphName
from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.environments.results import Acted, Begun, Ended
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall


@dataclass(frozen=True)
class EpisodeId:
    """One conversation of a generate call."""

    graph: GraphName
    step: int
    repetition: int
    """Earlier passes of this graph and step."""
    call: str
    """Id of the generate call."""
    round: int
    """Round of `flow.repeat`, from 0."""
    row: int
    """Row in the batch."""


@dataclass(frozen=True)
class Begin:
    """Request: begin an episode."""

    record: str
    """The column `record` of its row."""
    prompt_id: int
    """Id of the prompt, for readers of the journal."""
    sample: int
    """Number of the response among those to its prompt, from 0; for readers, too."""


@dataclass(frozen=True)
class Act:
    """Request: make the calls of a turn."""

    turn: int
    """Number of the turn, from 0."""
    calls: tuple[ToolCall | MalformedCall, ...]
    text: str
    """Text of the turn, for readers of the journal."""


@dataclass(frozen=True)
class End:
    """Request: compute the reward of an episode, and end its process."""

    reason: StopReason
    num_turns: int
    """Turns of the conversation, the last one included."""
    text: str
    """Text of the last turn, for readers of the journal."""


@dataclass(frozen=True)
class EpisodeRequest:
    """A request about one conversation."""

    episode: EpisodeId
    action: Begin | Act | End


EpisodeReply = Begun | Acted | Ended
"""The result of the action of a request."""
