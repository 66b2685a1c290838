"""Lengths of sequences, and a replica's share of a batch as the runtime cuts it.

Lengths: of prompts and responses only mean m, maximum T and the share q of responses that are cut
off at the maximum are known. An assumption, not a measurement: the share that is longer than t is

    S(t) = q + (1 - q) (1 - t / T)^k,  k = T / m' - 1,  m' = (m - q T) / (1 - q),  0 <= t < T

Its mean is m for every k. k = 0: all have the maximum length; k = 1: all others are equally likely;
larger k: most are short and few are long, as of a beta distribution with parameters 1 and k, scaled
by T. Lengths are assumed to be continuous, and those of prompts and responses to be independent.

Rows. Replicas get the same number of rows; the one with the most counts. Rows of a prompt share it
in one sequence while that is cheaper (docs/adr/0006-responses-share-their-prompt.md): l tokens of a
sequence cost l + c l^2 / (6 h) with a mask, c of the device, and l + l^2 / (12 h) without.

Padding. Sequences are sorted by length; a micro-batch is padded to its longest. With M padded
tokens of a full micro-batch, and s sequences of l tokens on average, of which the longest has x
more, m micro-batches hold about

    P = s l + s x / m  padded tokens, and m M = P, so that
    m = ( s l + sqrt((s l)^2 + 4 M s x) ) / (2 M)

but at least one; a sequence longer than M is alone. s x / m is exact for one micro-batch, and for
more if lengths are spread evenly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rlhf_planner.memory.role_model import RoleModel
from rlhf_sizing.costs import MASKED_COST, SequenceCost, attention_width

# An exponent below which all lengths count as equal: the gamma functions lose their digits.
EQUAL = 1e-6
# Lengths at which a peak is looked for.
PEAK_STEPS = 64


@dataclass(frozen=True)
class Lengths:
    """Lengths of prompts, or of responses, in tokens.

    Raises:
        ValueError: a mean that is not above 0, or above the maximum.
    """

    mean: float
    maximum: float
    truncated: float = 0.0
    """q: the share that is cut off at the maximum."""

    def __post_init__(self) -> None:
        if not 0 < self.mean <= self.maximum < math.inf:
            raise ValueError(
                f"lengths are impossible: got a mean of {self.mean} and a maximum of "
                f"{self.maximum} tokens, allowed a mean above 0 and at most the maximum; correct "
                "one of them"
            )
        # All of the maximum length are all cut off: the share does not matter then.
        limit = self.mean / self.maximum
        if self.mean < self.maximum and not 0 <= self.truncated < limit:
            raise ValueError(
                f"too many responses are cut off: got a share of {self.truncated} at "
                f"{self.maximum} tokens and a mean of {self.mean}, allowed less than {limit:.3g}; "
                "correct one of them"
            )

    @property
    def _share_of_others(self) -> float:
        """1 - q."""
        return 1.0 - self.truncated

    @property
    def exponent(self) -> float:
        """k: 0 if all have the maximum length."""
        if self.mean >= self.maximum:
            return 0.0
        cut = self.truncated * self.maximum
        return self.maximum * self._share_of_others / (self.mean - cut) - 1

    @property
    def mean_square(self) -> float:
        """E[X^2] = q T^2 + (1 - q) 2 T^2 / ((k + 1) (k + 2))."""
        # The integral of 2 t S(t) from 0 to T.
        k = self.exponent
        others = 2 * self.maximum**2 / ((k + 1) * (k + 2))
        return self.truncated * self.maximum**2 + self._share_of_others * others

    @property
    def variance(self) -> float:
        """E[X^2] - mean^2."""
        # Rounding could make the difference negative for equal lengths.
        return max(0.0, self.mean_square - self.mean**2)

    @property
    def mean_age(self) -> float:
        """Mean progress of a running sequence if each that ends is followed by another."""
        # The mean age of a renewal process.
        return self.mean_square / (2 * self.mean)

    def survival(self, tokens: float) -> float:
        """S(t): the share that is longer."""
        if tokens >= self.maximum:
            return 0.0
        if tokens <= 0:
            return 1.0
        others = float((1 - tokens / self.maximum) ** self.exponent)
        return self.truncated + self._share_of_others * others

    def exceeded_by(self, share: float) -> float:
        """The length that a share u exceeds, from S(t) = u in (0, 1]; the maximum for u up to q."""
        if self.exponent < EQUAL or share <= self.truncated:
            return self.maximum
        others = (share - self.truncated) / self._share_of_others
        return float(self.maximum * (1 - others ** (1 / self.exponent)))

    def after(self, tokens: float) -> Lengths:
        """Remaining lengths of those longer than `tokens`, which must be below the maximum."""
        # S(t + x) / S(t) has the same form, with the same k and the maximum T - t.
        left = self.maximum - tokens
        truncated = self.truncated / self.survival(tokens)
        mean = left * (truncated + (1 - truncated) / (self.exponent + 1))
        return Lengths(mean, left, truncated)

    def expected_running(self, number: float, tokens: float) -> float:
        """Expected number, out of `number`, that are longer: they still run after so many steps."""
        return number * self.survival(tokens)

    def expected_maximum(self, number: float) -> float:
        """Expected maximum of `number` lengths."""
        if self.exponent < EQUAL:
            return self.maximum
        # Without any cut off: 1 - X/T is V^(1/k) with V uniform on (0, 1), and the smallest of n
        # such V is distributed as beta(1, n), so that
        # E[max] = T (1 - Gamma(1 + 1/k) Gamma(n + 1) / Gamma(n + 1 + 1/k)).
        # None of n is cut off with the probability (1 - q)^n; else the maximum is T.
        power = 1 / self.exponent
        logarithm = (
            math.lgamma(1 + power) + math.lgamma(number + 1) - math.lgamma(number + 1 + power)
        )
        none = self._share_of_others**number
        return self.maximum * float(1 - none * math.exp(logarithm))

    def expected_peak(self, start: float) -> float:
        """Expected peak of tokens per sequence if all begin at once with `start` tokens."""
        if self.exponent < EQUAL:
            return start + self.maximum
        # (1 - t/T)^k (start + t) is largest at t = (T - k start) / (k + 1), or at 0 if that is
        # negative.
        at = max(0.0, (self.maximum - self.exponent * start) / (self.exponent + 1))
        if not self.truncated:
            return self.survival(at) * (start + at)
        # Those that are cut off move the peak to later, or make another at the end: there is no
        # closed form.
        last = self.truncated * (start + self.maximum)
        later = (at + (self.maximum - at) * step / PEAK_STEPS for step in range(PEAK_STEPS))
        return max(last, *(self.survival(t) * (start + t) for t in later))


@dataclass(frozen=True)
class CallRows:
    """The rows of a call, over all of its ranks."""

    rows: int
    """Prompts with a response each."""
    prompt: Lengths
    response: Lengths
    rows_per_prompt: int = 1
    """Responses to each prompt."""


class MicroBatches(NamedTuple):
    """The micro-batches of a replica for one update, as equal parts."""

    number: int
    tokens: float
    """Tokens of each, padding included."""
    pairs: float
    """Attention pairs (query, key) of each, as the equivalent number under plain causal attention.
    """
    predicted: float
    """Response tokens of each."""


@lru_cache(maxsize=16384)
def micro_batches(
    batch: CallRows,
    updates: int,
    data: int,
    micro_batch_tokens: int,
    longest_shared_tokens: int,
    cost: SequenceCost,
) -> MicroBatches:
    """The micro-batches of the replica with the most rows.

    Args:
        batch: of a call.
        updates: parts of it, each for an optimizer step.
        data: replicas.
        micro_batch_tokens: limit of padded tokens.
        longest_shared_tokens: of a sequence with several responses; 0 if prompts are not shared.
        cost: of a sequence of the model.
    """
    rows = -(-batch.rows // (updates * data))
    together = min(batch.rows_per_prompt, rows)
    joined = responses_per_sequence(
        batch.prompt.mean,
        batch.response.mean,
        together,
        cost,
        longest_shared_tokens,
    )
    sequences = rows / joined
    prompt, response = batch.prompt, batch.response
    mean = prompt.mean + joined * response.mean
    square = mean**2 + prompt.variance + joined * response.variance
    # The longest sequence's excess over the mean. Lengths of prompts and responses are independent,
    # so their excesses add up in squares.
    longer = math.hypot(
        prompt.expected_maximum(sequences) - prompt.mean,
        math.sqrt(joined) * (response.expected_maximum(sequences) - response.mean),
    )
    real = sequences * mean
    is_equal = square == mean**2
    full = _filled(micro_batch_tokens, mean, is_equal=is_equal)
    number = (real + math.sqrt(real**2 + 4 * full * sequences * longer)) / (2 * full)
    padded = real + sequences * longer / max(1.0, number)
    # The tolerance keeps rounding from adding a micro-batch.
    count = max(1, math.ceil(number - 1e-9))
    # A mask computes the full square, each pair c times as long; causal order half of it.
    seen = cost.masked_cost * square if joined > 1 else square / 2
    return MicroBatches(
        count,
        padded / count,
        sequences * seen * padded / real / count,
        rows * response.mean / count,
    )


def replica_micro_batches(batch: CallRows, model: RoleModel, updates: int = 1) -> MicroBatches:
    """The micro-batches of a role's replica."""
    return micro_batches(
        batch,
        updates,
        model.mesh.data,
        model.micro_batch_tokens,
        model.longest_shared_tokens,
        sequence_cost(model),
    )


def sequence_cost(model: RoleModel) -> SequenceCost:
    """Cost of a role's sequences."""
    shape = model.shape
    width = attention_width(
        shape.hidden_size, shape.intermediate_size, shape.query_size, shape.key_value_size
    )
    return SequenceCost(width, MASKED_COST[model.device])


def _filled(limit: int, mean: float, *, is_equal: bool) -> float:
    """Padded tokens of a full micro-batch."""
    # Equal sequences fill it by a whole number of them; else half of one stays free on average.
    return max(mean, limit // mean * mean if is_equal else limit - mean / 2)


@lru_cache(maxsize=4096)
def responses_per_sequence(
    prompt: float, response: float, rows_per_prompt: int, cost: SequenceCost, longest: int
) -> float:
    """Mean number of responses that share a prompt, over the sequences of a prompt.

    Args:
        prompt: its tokens.
        response: tokens of each.
        rows_per_prompt: responses to it.
        cost: of a sequence of the model.
        longest: limit of tokens in a sequence with several responses.
    """
    # The rule of the runtime's `group_into_sequences`, applied to mean lengths: a response joins as
    # long as that is cheaper than a sequence of its own.
    length, joined = prompt + response, 1
    alone = cost.alone(length)
    while joined < rows_per_prompt and length + response <= longest:
        if cost.shared(length + response) - cost.shared(length) >= alone:
            break
        length += response
        joined += 1

    def sequences(rows: int) -> int:
        """Sequences of a number of responses that may share one."""
        together = cost.shared(prompt + rows * response) < rows * alone
        return 1 if rows and together else rows

    full, rest = divmod(rows_per_prompt, joined)
    return rows_per_prompt / (full * sequences(joined) + sequences(rest))
