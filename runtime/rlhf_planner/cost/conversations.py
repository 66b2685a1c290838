"""Times of conversations: their turns, the answers between these, and waits for tools.

Tokens. Of a response of R tokens, of all turns and answers, a share s is sampled; the rest are
answers, which are prefilled. Turns end at random tokens: with K turns on average in a response of
mean length m there are g = (K - 1) / m gaps for each token. A response that would have more turns
than the limit has longer ones: no more gaps, but answers as before.

Order Exact. A gap lasts d decode steps. So a conversation takes (s + g d) R steps, and is decoded
in a share p = s / (s + g d) of them. With n live conversations, b = 1 - (1 - p)^n of the steps
decode something, n p / b sequences each; the engine skips the others. A gap also lasts at least
the T seconds of its tools. The next gap behind it begins when the next turn ends, after
s / g / (1 + (n - 1) p) steps on average, so gaps in a row fill a share

    w = d / (d + s / g / (1 + (n - 1) p))

of the steps. The n - 1 others decode in b' = 1 - (1 - p)^(n - 1) of these. With f seconds of a
decode step, the engine computes b f seconds for each step, and waits w max(0, T / d - b' f).
Conversations that follow others begin d steps after these: a gap without tools.

Order Fastest. A gap lasts T seconds, T / f steps, and f depends on p: it is the fixed point. The
engine waits while none decodes, (1 - b) f.

For one conversation both are exact: s f + g T seconds for each token.

Last conversation. Responses of equal length have gaps as of a Poisson distribution, up to the
limit: the most of n of them has K' instead of K - 1. That and the longest response are independent,
so their excesses over the means add up in squares. The last conversation is alone, so that a gap
takes T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from rlhf_api.mesh import Mesh
from rlhf_planner.cost.engine import Engine
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_planner.problem.problem import ConversationWorkload
from rlhf_sizing.limits import BATCHED_TOKENS

# Returns the seconds of a step from its sequences and the tokens in their cache.
DecodeStep = Callable[[float, float], CallSeconds]

# Relative change of a step's seconds at which the fixed point is reached. An iteration leaves at
# most the share of the error with which a step depends on its sequences.
TOLERANCE, MAX_ITERATIONS = 1e-6, 100


class ResponseTurns(Protocol):
    """The turns of responses."""

    @property
    def sampled_share(self) -> float:
        """s: share of a response's tokens that are sampled."""

    @property
    def last_gap_tokens(self) -> float:
        """Tokens of a response behind which there are no more gaps."""

    def decoding_share(self, step_seconds: float) -> float:
        """p: share of the steps in which a conversation is decoded.

        Args:
            step_seconds: seconds of a decode step; above 0.
        """

    def token_seconds(
        self, decode: DecodeStep, live: float, context: float, *, has_gaps: bool = True
    ) -> CallSeconds:
        """Seconds in which all live conversations get a token, without the prefill of answers.

        Args:
            decode: of their engine.
            live: number of conversations; 1 or more.
            context: tokens of each.
            has_gaps: False behind their last gap.
        """

    def extra_tokens(self, decode: DecodeStep, context: float, longest: float) -> float:
        """Tokens of one conversation that take as long as the last one takes longer than the
        longest response with a mean number of gaps for each token.

        Args:
            decode: of its engine.
            context: tokens of the last conversation.
            longest: tokens of the longest response.
        """

    def of_followers(self) -> ResponseTurns:
        """Return the turns of conversations that begin when others end."""


class OneTurn:
    """One turn for every response; see `ResponseTurns`."""

    sampled_share = 1.0
    last_gap_tokens = math.inf

    def decoding_share(self, step_seconds: float) -> float:
        """All steps."""
        return 1.0

    def token_seconds(
        self, decode: DecodeStep, live: float, context: float, *, has_gaps: bool = True
    ) -> CallSeconds:
        """Seconds of a decode step."""
        return decode(live, live * context)

    def extra_tokens(self, decode: DecodeStep, context: float, longest: float) -> float:
        """None."""
        return 0.0

    def of_followers(self) -> OneTurn:
        """They have one turn, too."""
        return self


ONE_TURN = OneTurn()


@dataclass(frozen=True)
class Turns:
    """The turns of conversations, more than one on average; see `ResponseTurns`."""

    workload: ConversationWorkload
    response: Lengths
    """Lengths of responses, answers included."""
    num_live: int
    """Conversations of all engines that may be live at once."""
    is_first: bool = True
    """False if they begin when others end."""

    @property
    def gaps(self) -> float:
        """g: gaps for each token of a response."""
        return (self.workload.turns - 1) / self.response.mean

    @property
    def sampled_share(self) -> float:
        """s: assumed for the workload."""
        return self.workload.sampled_share

    @property
    def last_gap_tokens(self) -> float:
        """Tokens with as many gaps as a conversation may have."""
        return (self.workload.max_turns - 1) / self.gaps

    def decoding_share(self, step_seconds: float) -> float:
        """p, by the order of the workload."""
        sampled, delay = self.workload.sampled_share, self.workload.delay_steps
        if delay is None:
            return sampled / (sampled + self.gaps * self.workload.tool_seconds / step_seconds)
        return sampled / (sampled + (self.gaps + self._starts) * delay)

    @property
    def _starts(self) -> float:
        """Starts behind other conversations, for each token."""
        return 0.0 if self.is_first else 1 / self.response.mean

    def token_seconds(
        self, decode: DecodeStep, live: float, context: float, *, has_gaps: bool = True
    ) -> CallSeconds:
        """Seconds of decode steps and of waits for tools."""
        if not has_gaps:
            return decode(live, live * context).times(self.workload.sampled_share)
        # From above: fewer sequences make a step shorter, so that gaps of a time have more steps.
        step = decode(live, live * context)
        for _ in range(MAX_ITERATIONS):
            share = self.decoding_share(step.total)
            busy = 1 - math.pow(1 - share, live)
            sequences, before = live * share / busy, step.total
            step = decode(sequences, sequences * context)
            if before <= step.total * (1 + TOLERANCE):
                break
        steps = self.workload.sampled_share / share
        waits = self._wait_seconds(live, share, step.total)
        return replace(step.times(steps * busy), tools=steps * waits)

    def _wait_seconds(self, live: float, share: float, step_seconds: float) -> float:
        """Seconds of waits for tools, for each step."""
        delay = self.workload.delay_steps
        if delay is None:
            return math.pow(1 - share, live) * step_seconds
        # Steps of a turn, and of its part of a start; any conversation may end one.
        turn_steps = (self.workload.sampled_share + self._starts * delay) / self.gaps
        next_turn = turn_steps / (1 + (live - 1) * share)
        others = 1 - math.pow(1 - share, live - 1)
        missing = max(0.0, self.workload.tool_seconds / delay - others * step_seconds)
        return delay / (delay + next_turn) * missing

    def extra_tokens(self, decode: DecodeStep, context: float, longest: float) -> float:
        """Tokens for the last conversation's longer response and further gaps."""
        # The number does not depend on the cache, so that a larger one never takes longer.
        gaps = self.workload.turns - 1
        max_gaps = expected_max_gaps(gaps, self.workload.max_turns - 1, self.num_live)
        waits = max(0.0, max_gaps - gaps) * self.workload.tool_seconds
        alone = self.token_seconds(decode, 1.0, context).total
        longer = max(0.0, longest - self.response.mean)
        return math.hypot(longer, waits / alone) - longer

    def of_followers(self) -> Turns:
        """Return the turns of conversations that begin when others end."""
        return replace(self, is_first=False)


@lru_cache(maxsize=1024)
def expected_max_gaps(mean: float, limit: int, number: int) -> float:
    """K': expected maximum of some numbers of a Poisson distribution, each up to a limit.

    Args:
        mean: above 0.
        limit: of each.
        number: of numbers.
    """
    maximum = cumulative = 0.0
    for count in range(limit):
        cumulative += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        maximum += 1 - min(1.0, cumulative) ** number
    return maximum


def turns_of(
    conversations: ConversationWorkload | None,
    response: Lengths,
    num_rows: int,
    engines: Mesh,
    devices_per_node: int,
) -> ResponseTurns:
    """The turns of responses.

    Args:
        conversations: of the step. None: its responses have one turn.
        response: lengths of responses.
        num_rows: number of responses.
        engines: the ranks that generate.
        devices_per_node: of their pool.
    """
    if conversations is None or conversations.turns == 1:
        return ONE_TURN
    live = live_per_engine(conversations, engines, devices_per_node) * engines.data
    return Turns(conversations, response, min(num_rows, live))


def live_per_engine(
    conversations: ConversationWorkload, engines: Mesh, devices_per_node: int
) -> int:
    """Limit of live conversations of an engine; arguments as for `turns_of`."""
    # Engines on a full node, wherever the mesh begins: so all meshes of a size take as long, and a
    # bound for one of them holds for all.
    on_node = min(engines.data, max(1, devices_per_node // engines.tensor))
    return max(1, conversations.concurrency // on_node)


def live_at_once(
    turns: ResponseTurns, engine: Engine, live: int, decoded: int, cached: float, context: float
) -> float:
    """Conversations that are live on an engine at once.

    Args:
        turns: of these.
        engine: the engine.
        live: limit of live conversations.
        decoded: limit of sequences that it decodes at once.
        cached: conversations that its cache holds.
        context: mean tokens of a conversation.
    """
    share = turns.decoding_share(engine.decode(decoded, decoded * context).total)
    # Conversations in a gap keep their place in the cache: where others took it, all of their
    # tokens would be prefilled again in every turn.
    return max(1.0, min(float(live), decoded / share, cached))


def answer_seconds(
    engine: Engine, conversations: float, sampled_share: float, prompt: Lengths, response: Lengths
) -> CallSeconds:
    """Seconds of prefill of the answers of some conversations.

    Args:
        engine: the engine.
        conversations: their number.
        sampled_share: share of a response's tokens that are no answers.
        prompt: lengths of prompts.
        response: lengths of responses.
    """
    share = conversations * (1 - sampled_share)
    if not share:
        return CallSeconds()
    tokens = share * response.mean
    # An answer's tokens attend to all before them: the prompt, and half of the response on average.
    pairs = share * (prompt.mean * response.mean + response.mean_square / 2)
    passes = math.ceil(tokens / BATCHED_TOKENS)
    return engine.prefill(tokens / passes, pairs / passes).times(passes)
