"""Operations that compare or count the responses to a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import ClassVar

from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, check_member, checked_settings, is_count, is_number
from rlhf_flow.step.column_settings import (
    ChangedCredits,
    ColumnSettings,
    Credits,
    NewAdvantages,
    NewPreference,
    NewTexts,
    NewTruth,
    Preference,
    Scores,
    Valid,
)
from rlhf_flow.step.operations.scope import Scope


class GroupBaseline(Enum):
    """Baseline of a response among the samples of its prompt."""

    MEAN = "mean"
    """The mean of all samples of the prompt (GRPO)."""
    LEAVE_ONE_OUT = "leave one out"
    """The mean of the other samples (RLOO)."""
    LENGTH_WEIGHTED = "length weighted"
    """The mean weighted by lengths in unmasked tokens (OPO)."""


@checked_settings
@dataclass(frozen=True)
class GroupAdvantages(ColumnSettings):
    """Scores relative to the valid samples of the same prompt, spread over the response's tokens.

    Source: DeepSeekMath, section 4.1; without the standard deviation Dr.GRPO; RLOO (arXiv
    2402.14740); OPO (arXiv 2505.23585).
    """

    scope: ClassVar[Scope] = Scope.GROUP
    # Response tokens for the number of tokens that get an advantage, and for OPO's weights.
    always: ClassVar[tuple[str, ...]] = (columns.PROMPT_ID, columns.RESPONSE_TOKENS)

    scores: Scores
    """The column of scores, such as reward_scores."""
    valid: Valid
    """The column that is true for the rows with a score, such as reward_valid."""
    normalize_by_std: bool = True
    """True: divide by the group's standard deviation."""
    baseline: GroupBaseline = GroupBaseline.MEAN
    advantages: NewAdvantages = columns.ADVANTAGES
    """The column that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_member(type(self).__name__, "baseline", self.baseline, GroupBaseline)


@checked_settings
@dataclass(frozen=True)
class AddTurnAdvantages(ColumnSettings):
    """Advantages plus those of turns: the discounted rewards of turns from each turn on, relative
    to the valid samples of the same prompt that have this turn, on all tokens of the turn.

    Source: GiGPO (arXiv 2505.10978), section 4.2, with the turn's number as the anchor state.
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (columns.PROMPT_ID,)

    valid: Valid
    """The column that is true for the rows with a score, such as reward_valid."""
    weight: float = 1.0
    """Factor of the rewards of turns."""
    discount: float = 1.0
    """Factor of a reward for each turn that lies between."""
    normalize_by_std: bool = False
    """True: divide by the standard deviation of the samples of a prompt that have the turn."""
    turn_rewards: Credits = columns.TURN_REWARDS
    """The column of the rewards of turns."""
    advantages: ChangedCredits = columns.ADVANTAGES
    """The column that it changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check(owner, "weight", self.weight, is_number(self.weight, -inf), "a number")
        is_share = is_number(self.discount) and self.discount <= 1
        check(owner, "discount", self.discount, is_share, "a number from 0 to 1")


@checked_settings
@dataclass(frozen=True)
class BestAgainstWorst(ColumnSettings):
    """Per prompt, choose the valid response with the highest score (1) and reject the one with the
    lowest (-1); all others are 0. The first of equal scores wins. Nothing is chosen if all scores
    are equal, or if fewer than two responses are valid.

    Source: RLHF Workflow (arXiv 2405.07863), section 3.
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (columns.PROMPT_ID,)

    scores: Scores
    """The column of scores, such as reward_scores."""
    valid: Valid
    """The column that is true for the rows with a score, such as reward_valid."""
    preference: NewPreference = columns.PREFERENCE
    """The column that it writes."""


@checked_settings
@dataclass(frozen=True)
class PairLines(ColumnSettings):
    """A line of JSON for every pair of a chosen and a rejected response to a prompt, for
    `flow.save`.

    A line is the record of the data, with `prompt`, `chosen`, `rejected`, `chosen_score`,
    `rejected_score` and `step` added or replaced. It belongs to the chosen row; all other rows have
    none. Pairs with an empty response, or of two equal ones, are left out.

    Raises:
        FlowError: an invalid name.
    """

    # data.train, which reads such files, refuses pairs with an empty or with equal responses.

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (columns.RECORD, columns.RESPONSE_TEXT)

    scores: Scores
    """The column of scores, such as reward_scores."""
    preference: Preference = columns.PREFERENCE
    """The column that is 1 for chosen responses and -1 for rejected ones."""
    prompt_field: str = "prompt"
    """Name of the prompt in a record: data.train.promptField."""
    lines: NewTexts = columns.LINES
    """The column that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_text = isinstance(self.prompt_field, str)
        check(type(self).__name__, "prompt_field", self.prompt_field, is_text, "a text")


@checked_settings
@dataclass(frozen=True)
class MixedGroups(ColumnSettings):
    """True for valid responses of groups with more than one score; the others have no gradient.

    Source: Yu et al., DAPO (arXiv 2503.14476), section 3.2.
    """

    scope: ClassVar[Scope] = Scope.GROUP

    scores: Scores
    """The column of scores, such as reward_scores."""
    valid: Valid
    """The column that is true for the rows with a score, such as reward_valid."""
    mixed: NewTruth = "mixed"
    """The column that it writes."""


@checked_settings
@dataclass(frozen=True)
class EnoughGroups(ColumnSettings):
    """True if enough prompts have rows that count: a condition for flow.repeat.

    Source: Yu et al., DAPO (arXiv 2503.14476), algorithm 1.

    Raises:
        FlowError: an invalid number.
    """

    scope: ClassVar[Scope] = Scope.BATCH

    counted: Valid
    """The column that is true for the rows that count, such as mixed."""
    num_groups: int
    """Required number of prompts."""
    enough: NewTruth = columns.ENOUGH
    """The column that it writes, the same in every row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number_of_groups = is_count(self.num_groups)
        allowed = "a number of at least 1"
        check(type(self).__name__, "num_groups", self.num_groups, is_number_of_groups, allowed)


@checked_settings
@dataclass(frozen=True)
class PassAtK(ColumnSettings):
    """Pass rate of valid responses, and of the best of k to the same prompt, as metrics: of all
    prompts, and of each of several data sources.

    Source: Chen et al., Evaluating large language models trained on code (arXiv 2107.03374),
    equation 1.

    Raises:
        FlowError: no number of responses, or an invalid one.
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (columns.RECORD,)

    scores: Scores
    """The column of scores, such as reward_scores."""
    valid: Valid
    """The column that is true for the rows with a score, such as reward_valid."""
    ks: tuple[int, ...] = (1,)
    """Numbers of responses."""
    threshold: float = 1.0
    """Minimum score of a response that passes."""
    passed: NewTruth = "passed"
    """The column that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        are_counts = bool(self.ks) and all(map(is_count, self.ks))
        check(type(self).__name__, "ks", self.ks, are_counts, "numbers of at least 1")
