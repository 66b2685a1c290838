"""The conversations of one generate call on one engine.

A conversation's turn ends; its calls are sent to the environment host, while other conversations
go on. With order Exact its next turn enters the engine a fixed number of decode steps later, so
what is decoded together depends on tokens alone, never on the time that a tool takes. Generation
waits for answers that are not there then.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlhf_api.spec.conversation import ConversationOrder
from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.calls.episodes import (
    Act,
    Begin,
    End,
    EpisodeId,
    EpisodeReply,
    EpisodeRequest,
)
from rlhf_runtime.conversations.conversation import Conversation
from rlhf_runtime.conversations.first_prompt import (
    length_failure,
    marked_prompt,
    with_observation,
    with_prompt,
)
from rlhf_runtime.conversations.interfaces import ConversationSettings, ConversationTools
from rlhf_runtime.conversations.silence_limit import SilenceLimit
from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.engines.generation import GenerationEngine, SequenceEnded
from rlhf_runtime.engines.response_batch import ResponseBatch, Sampling
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.results import (
    Acted,
    Begun,
    Ended,
    EpisodeFailure,
)

# Longest wait for the environment before the other ranks of the engine hear that it goes on.
WAIT_SECONDS = 1.0
# Time that a host may take besides that of the tools themselves.
SLACK_SECONDS = 60.0

SamplingOf = Callable[[Sequence[int], Sequence[int]], Sampling]
"""Returns the sampling of some turns, from their rows and the numbers of the turns."""


@dataclass(order=True)
class _Waiting:
    """A conversation that waits for its environment."""

    due: int
    """Decode step at which it goes on."""
    row: int
    conversation: Conversation = field(compare=False)
    ticket: int = field(compare=False)


class Conversations:
    """Runs conversations to their ends. All ranks of an engine do the same in the same order."""

    def __init__(
        self,
        settings: ConversationSettings,
        tools: ConversationTools,
        engine: GenerationEngine,
        responses: ResponseBatch,
        sampling: SamplingOf,
        episode: Callable[[int], EpisodeId],
    ) -> None:
        """
        Args:
            settings: of the conversations.
            tools: functions that they call.
            engine: generates the turns.
            responses: an empty batch of the engine; each turn becomes a row of it.
            sampling: of turns.
            episode: returns the id of a row's conversation.
        """
        self._settings, self._tools = settings, tools
        self._engine, self._responses = engine, responses
        self._sampling, self._episode = sampling, episode
        self._delay = settings.environment.delay_steps
        self._is_exact = settings.environment.order is ConversationOrder.EXACT
        # What the journal of the call has; on the engine's first rank, at the end.
        self.records = RecordCounts()
        seconds = settings.environment.limits.episode_seconds + SLACK_SECONDS
        self._silence = SilenceLimit(tools.tick, seconds)
        # Decode steps since the call began.
        self._now = 0
        self._num_live = 0
        self._num_tickets = 0
        # Conversations whose turn the engine generates, by the turn's row in `responses`.
        self._generating: dict[int, Conversation] = {}
        self._waiting: list[_Waiting] = []
        # Conversations that ended, and whose reward is not there yet, by ticket.
        self._ending: dict[int, Conversation] = {}

    def run(self, conversations: Sequence[Conversation], after_step: Callable[[], None]) -> None:
        """Run conversations until all have ended and have their rewards.

        Args:
            conversations: in the order in which they begin.
            after_step: called after every decode step.
        """
        queue = deque(conversations)
        while queue or self._generating or self._waiting:
            while queue and self._num_live < self._settings.capacity:
                self._begin(queue.popleft())
            if self._engine.has_work:
                for row, turn in self._responses.step():
                    self._end_turn(self._generating.pop(row), turn)
                self._now += 1
                after_step()
            self._resume_due()
        # A batch may still be in flight on a GPU.
        while self._engine.has_work:
            self._responses.step()
        client = self._tools.client
        self._silence.restart()
        while self._ending and client is not None:
            num_before = len(self._ending)
            self.collect_rewards(WAIT_SECONDS)
            self._silence.report_wait(len(self._ending) < num_before)
        if conversations and client is not None:
            self.records = client.complete(self._episode(conversations[0].row))

    def _begin(self, conversation: Conversation) -> None:
        self._num_live += 1
        # At the start there is nothing to generate meanwhile.
        due = self._now + (self._delay if self._engine.has_work else 0)
        begin = Begin(conversation.record, conversation.prompt_id, conversation.sample)
        self._send_and_wait(conversation, begin, due)

    def _end_turn(self, conversation: Conversation, turn: SequenceEnded) -> None:
        """Record a turn; send its calls, or end the conversation."""
        conversation.add_turn(turn, self._tools.decode(turn.tokens))
        assert turn.reason is not None
        if not turn.reason.is_complete:
            self._end(conversation, turn.reason)
            return
        last = conversation.turns[-1]
        last.calls = conversation.dialogue.calls(turn.tokens)
        if not last.calls:
            self._end(conversation, turn.reason)
            return
        if len(conversation.turns) == self._settings.environment.limits.turns:
            self._end(conversation, StopReason.TURN_LIMIT)
            return
        action = Act(len(conversation.turns) - 1, tuple(last.calls), last.text)
        self._send_and_wait(conversation, action, self._now + self._delay)

    def _send_and_wait(self, conversation: Conversation, action: Begin | Act, due: int) -> None:
        ticket = self._send(conversation, action)
        heapq.heappush(self._waiting, _Waiting(due, conversation.row, conversation, ticket))

    def _end(self, conversation: Conversation, reason: StopReason) -> None:
        self._num_live -= 1
        conversation.reason = reason
        text = conversation.turns[-1].text if conversation.turns else ""
        ticket = self._send(conversation, End(reason, len(conversation.turns), text))
        self._ending[ticket] = conversation

    def _send(self, conversation: Conversation, action: Begin | Act | End) -> int:
        # Tickets are counted on all ranks, so that they agree on them.
        self._num_tickets += 1
        if self._tools.client is not None:
            request = EpisodeRequest(self._episode(conversation.row), action)
            sent = self._tools.client.send(request)
            assert sent == self._num_tickets, "one client serves one call"
        return self._num_tickets

    def _resume_due(self) -> None:
        """Add the next turns of the conversations that are due to the engine."""
        begun = [
            waiting.conversation
            for waiting, reply in self._due_replies()
            if self._apply(waiting, reply)
        ]
        if not begun:
            return
        rows = [conversation.row for conversation in begun]
        turns = [len(conversation.turns) for conversation in begun]
        numbers = self._responses.add(
            pack([conversation.next_prompt() for conversation in begun], np.int32),
            self._sampling(rows, turns),
            [conversation.remaining for conversation in begun],
            keeps_prefixes=bool(self._responses.num_rows),
        )
        self._generating.update(zip(numbers, begun, strict=True))

    def _apply(self, waiting: _Waiting, reply: EpisodeReply) -> bool:
        """Apply a reply; return true if the conversation's next turn begins."""
        conversation = waiting.conversation
        failure = reply.failure
        if failure is None and isinstance(reply, Begun):
            failure = self._write_prompt(conversation, reply.observation)
        if failure is not None:
            conversation.failure = failure
            self._end(conversation, StopReason(failure.kind.value))
        elif isinstance(reply, Acted):
            self._write_answers(conversation, reply)
        return conversation.reason is None

    def _write_prompt(
        self, conversation: Conversation, observation: str | None
    ) -> EpisodeFailure | None:
        """Write the observation of `reset` into the prompt; return the failure if it cannot be."""
        if not observation:
            return None
        dialogue = conversation.dialogue
        text = with_observation(marked_prompt(conversation.record), observation, dialogue)
        tokens = dialogue.prompt_tokens(text)
        failure = length_failure(len(tokens), self._settings.max_prompt_tokens)
        if failure is not None:
            return failure
        conversation.prompt = tokens
        conversation.record = with_prompt(conversation.record, text)
        return None

    def _write_answers(self, conversation: Conversation, reply: Acted) -> None:
        """Append the answers to the last turn's calls; end the conversation if they do not fit."""
        turn = conversation.turns[-1]
        turn.answers = tuple(map(self._tools.cut_answer, reply.answers))
        turn.reward, turn.wrong = reply.reward, reply.wrong
        tokens = conversation.dialogue.answer_tokens(
            conversation.last_turn, turn.calls, turn.answers
        )
        num_tokens = len(conversation.prompt) + conversation.num_tokens + len(tokens)
        # The next turn needs a token.
        if len(tokens) >= conversation.remaining:
            self._end(conversation, StopReason.TOKEN_LIMIT)
        elif num_tokens >= self._settings.max_sequence_tokens:
            self._end(conversation, StopReason.CONTEXT_LIMIT)
        else:
            conversation.add_answer(tokens)

    def _due_replies(self) -> list[tuple[_Waiting, EpisodeReply]]:
        """Return the conversations that go on now, in order, with their replies."""
        if not self._waiting:
            return []
        if not self._is_exact:
            return self._arrived_replies()
        if not self._engine.has_work:
            self._now = max(self._now, self._waiting[0].due)
        due = []
        while self._waiting and self._waiting[0].due <= self._now:
            due.append(heapq.heappop(self._waiting))
        replies: dict[int, EpisodeReply] = {}
        self._silence.restart()
        while len(replies) < len(due):
            missing = [one.ticket for one in due if one.ticket not in replies]
            new = self._take(missing, len(missing), WAIT_SECONDS)
            replies |= new
            self._silence.report_wait(bool(new))
        return [(one, replies[one.ticket]) for one in due]

    def _arrived_replies(self) -> list[tuple[_Waiting, EpisodeReply]]:
        """Return the conversations whose environment has answered."""
        # Without work there is nothing else to do.
        seconds = 0.0 if self._engine.has_work else WAIT_SECONDS
        replies = self._take([one.ticket for one in self._waiting], 1, seconds)
        self._silence.report_wait(bool(replies) or self._engine.has_work)
        due = sorted(one for one in self._waiting if one.ticket in replies)
        self._waiting = [one for one in self._waiting if one.ticket not in replies]
        heapq.heapify(self._waiting)
        return [(one, replies[one.ticket]) for one in due]

    def _take(
        self, tickets: Sequence[int], num_needed: int, seconds: float
    ) -> dict[int, EpisodeReply]:
        """Return the replies that are there, the same on all ranks of the engine."""
        client = self._tools.client
        own = {} if client is None else client.take(tickets, num_needed, seconds)
        return self._engine.share(own)

    def collect_rewards(self, seconds: float = 0.0) -> None:
        """Take the rewards of conversations that have ended, on the engine's first rank.

        Args:
            seconds: longest time to wait for all of them.
        """
        client = self._tools.client
        if client is None or not self._ending:
            return
        tickets = list(self._ending)
        for ticket, reply in client.take(tickets, len(tickets), seconds).items():
            assert isinstance(reply, Ended)
            conversation = self._ending.pop(ticket)
            conversation.has_final_reply, conversation.reward = True, reply.reward
            if reply.failure is not None and conversation.failure is None:
                conversation.failure = reply.failure
                conversation.reason = StopReason(reply.failure.kind.value)
