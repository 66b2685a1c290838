"""What compares or counts the responses to a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, check_member, checked_settings, is_count
from rlhf_flow.step.columns import (
    ColumnSettings,
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
    """What a response is compared with."""

    MEAN = "mean"
    """The mean of its prompt's samples, its own among them (GRPO)."""
    LEAVE_ONE_OUT = "leave one out"
    """The mean of the others (RLOO)."""
    LENGTH_WEIGHTED = "length weighted"
    """The mean weighted by lengths, in tokens that count (OPO)."""


@checked_settings
@dataclass(frozen=True)
class GroupAdvantages(ColumnSettings):
    """Scores relative to the valid samples of the same prompt, spread over the response's tokens.

    Source: DeepSeekMath, section 4.1; without the standard deviation Dr.GRPO; RLOO (arXiv
    2402.14740); OPO (arXiv 2505.23585).
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (columns.PROMPT_ID, columns.RESPONSE_TOKENS)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    normalize_by_std: bool = True
    """Whether they are divided by the group's standard deviation."""
    baseline: GroupBaseline = GroupBaseline.MEAN
    """What a response is compared with."""
    advantages: NewAdvantages = columns.ADVANTAGES
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_member(type(self).__name__, "baseline", self.baseline, GroupBaseline)


@checked_settings
@dataclass(frozen=True)
class BestAgainstWorst(ColumnSettings):
    """Of each prompt's valid responses the one with the highest score is chosen (1), the one with
    the lowest rejected (-1), all others neither (0). Of equal ones the first counts; where all are
    equal, or fewer than two are valid, none is chosen.

    Source: RLHF Workflow (arXiv 2405.07863), section 3.
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (columns.PROMPT_ID,)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    preference: NewPreference = columns.PREFERENCE
    """The field that it writes."""


@checked_settings
@dataclass(frozen=True)
class PairLines(ColumnSettings):
    """A line of JSON for every pair of a chosen and a rejected response to one prompt, for
    `flow.save`: the data's row, with `prompt`, `chosen`, `rejected`, `chosen_score`,
    `rejected_score` and `step` in the place of what it has under these names. The line is the
    chosen row's; all other rows have none. Pairs with an empty response, or of two equal ones, are
    left out: data.train cannot have them.

    Raises:
        FlowError: a name that is none.
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (columns.RECORD, columns.RESPONSE_TEXT)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    preference: Preference = columns.PREFERENCE
    """The field that says who is chosen and who rejected."""
    prompt_field: str = "prompt"
    """What the data's row names its prompt: data.train.promptField."""
    lines: NewTexts = columns.LINES
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_text = isinstance(self.prompt_field, str)
        check(type(self).__name__, "prompt_field", self.prompt_field, is_text, "a text")


@checked_settings
@dataclass(frozen=True)
class MixedGroups(ColumnSettings):
    """Which valid responses have samples of their prompt with another score beside them: the others
    teach nothing.

    Source: Yu et al., DAPO (arXiv 2503.14476), section 3.2.
    """

    scope: ClassVar[Scope] = Scope.GROUP

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    mixed: NewTruth = "mixed"
    """The field that it writes."""


@checked_settings
@dataclass(frozen=True)
class EnoughGroups(ColumnSettings):
    """Whether so many prompts have rows that count: a condition for flow.repeat.

    Source: Yu et al., DAPO (arXiv 2503.14476), algorithm 1.

    Raises:
        FlowError: a number that is none.
    """

    scope: ClassVar[Scope] = Scope.BATCH

    counted: Valid
    """The field that says which rows count, such as mixed."""
    num_groups: int
    """Prompts that are wanted."""
    enough: NewTruth = columns.ENOUGH
    """The field that it writes, the same in every row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number_of_groups = is_count(self.num_groups)
        allowed = "a number of at least 1"
        check(type(self).__name__, "num_groups", self.num_groups, is_number_of_groups, allowed)


@checked_settings
@dataclass(frozen=True)
class PassAtK(ColumnSettings):
    """Which valid responses pass, and how likely one of k to the same prompt does, as metrics.

    Source: Chen et al., Evaluating large language models trained on code (arXiv 2107.03374),
    equation 1.

    Raises:
        FlowError: no number, or one that is none.
    """

    scope: ClassVar[Scope] = Scope.GROUP

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    ks: tuple[int, ...] = (1,)
    """Numbers of responses."""
    threshold: float = 1.0
    """A response passes with a score of at least so much."""
    passed: NewTruth = "passed"
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        are_counts = bool(self.ks) and all(map(is_count, self.ks))
        check(type(self).__name__, "ks", self.ks, are_counts, "numbers of at least 1")
