"""The columns that batches have: names, kinds and meanings, in one place.

Shapes: `rows` is the number of samples, `response` the tokens of a row's response. A custom
operation may add fields of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, ClassVar, Protocol, get_args, get_type_hints

from rlhf_api.base import IDENTIFIER_PATTERN
from rlhf_flow.step.checks import check


class Kind(Enum):
    """What a field holds for each row, or for each token of a row's response."""

    TOKENS = "token ids"
    LOG_PROBS = "a log-probability per token"
    VALUES = "a value per token"
    REWARDS = "a reward per token"
    ADVANTAGES = "an advantage per token"
    RETURNS = "a return per token"
    MASK = "which response tokens count, per token"
    SCORES = "a score per row"
    MULTIPLIER = "a multiplier, the same in each row"
    TRUTH = "true or false per row"
    PREFERENCE = "which response of a pair was preferred, per row"
    TEXT = "a text per row"
    RECORD = "a record per row"
    IDENTITY = "a whole number that names a row or its prompt"


PER_TOKEN = frozenset(
    {
        *(Kind.LOG_PROBS, Kind.VALUES, Kind.REWARDS, Kind.ADVANTAGES, Kind.RETURNS),
        Kind.MASK,
    }
)
"""Kinds with a number for each token of a row's response."""

PER_ROW = frozenset({Kind.SCORES, Kind.MULTIPLIER, Kind.TRUTH, Kind.PREFERENCE, Kind.IDENTITY})
"""Kinds with a number for each row."""

MOST_NAME = 63
"""Characters of a name."""

ALLOWED_NAMES = f"letters of ASCII, digits and _, no digit first, at most {MOST_NAME}"


def is_name(text: object) -> bool:
    """Whether a field or a role may be named so: plans and metrics have such names only."""
    if not isinstance(text, str) or len(text) > MOST_NAME:
        return False
    return re.fullmatch(IDENTIFIER_PATTERN, text) is not None


PROMPT_TOKENS = "prompt_tokens"
PROMPT_ID = "prompt_id"
RECORD = "record"
RESPONSE_TOKENS = "response_tokens"
RESPONSE_TEXT = "response_text"
ROLLOUT_LOG_PROBS = "rollout_log_probs"
FINISHED = "finished"
SAMPLE_INDEX = "sample_index"
PREFERENCE = "preference"
TOKEN_REWARDS = "token_rewards"
ADVANTAGES = "advantages"
RETURNS = "returns"
RESPONSE_MASK = "response_mask"
"""Read wherever tokens count, of every batch that has it (`rlhf_flow.masks`)."""
ENOUGH = "enough"
"""By which the condition of `flow.repeat` answers."""
LINES = "lines"
"""What `flow.save` writes."""

PROMPT_FIELDS = frozenset({PROMPT_TOKENS, PROMPT_ID, RECORD})
"""What data of prompts bring."""

ANSWER_FIELDS = PROMPT_FIELDS | {RESPONSE_TOKENS}
"""What data with reference answers bring: the response is the answer."""

PAIR_FIELDS = ANSWER_FIELDS | {PREFERENCE}
"""What data of preference pairs bring: for every prompt a row with the chosen response, and one
with the rejected."""


PRETRAINING_FIELDS = frozenset({PROMPT_TOKENS, PROMPT_ID, RESPONSE_TOKENS})
"""What rows of data.pretraining bring: of a whole text the first token is the prompt."""


@dataclass(frozen=True)
class Field:
    """What a column holds."""

    kind: Kind
    """What operations and losses may take it for."""
    meaning: str
    """What it is, its number format and its shape."""


FIELDS = {
    PROMPT_TOKENS: Field(Kind.TOKENS, "token ids of the prompt, int32 [rows, ragged]"),
    PROMPT_ID: Field(
        Kind.IDENTITY,
        "identity of the prompt, equal for the samples of a group, int64 [rows]",
    ),
    RECORD: Field(Kind.RECORD, "the data row, as verifiers see it, one mapping per row"),
    RESPONSE_TOKENS: Field(
        Kind.TOKENS, "token ids of the response, its end token included, int32 [rows, ragged]"
    ),
    RESPONSE_TEXT: Field(Kind.TEXT, "the response, decoded"),
    ROLLOUT_LOG_PROBS: Field(
        Kind.LOG_PROBS,
        "log-probability of each sampled token at the sampling temperature, as the generation "
        "engine computed it, float32 [rows, ragged]",
    ),
    FINISHED: Field(Kind.TRUTH, "whether the response ended by itself, bool [rows]"),
    SAMPLE_INDEX: Field(Kind.IDENTITY, "number of the sample within its prompt, int32 [rows]"),
    PREFERENCE: Field(
        Kind.PREFERENCE,
        "1 for the chosen response to a prompt, -1 for a rejected one, 0 for one in no pair, int8 "
        "[rows]",
    ),
    TOKEN_REWARDS: Field(Kind.REWARDS, "reward of each response token, float32 [rows, ragged]"),
    ADVANTAGES: Field(Kind.ADVANTAGES, "advantage of each response token, float32 [rows, ragged]"),
    LINES: Field(
        Kind.TEXT, "what flow.save writes of the row: lines without the last one's end, or nothing"
    ),
    ENOUGH: Field(Kind.TRUTH, "whether flow.repeat has enough rows, the same in each, bool [rows]"),
    RETURNS: Field(
        Kind.RETURNS, "a critic's target for each response token, float32 [rows, ragged]"
    ),
    RESPONSE_MASK: Field(
        Kind.MASK,
        "1 for a response token of the policy's own, 0 for one that is not trained on, such as a "
        "tool's output, int8 [rows, ragged]; without it all are the policy's own",
    ),
}

_OF_ROLES = {
    "log_probs": Field(
        Kind.LOG_PROBS,
        "log-probability of each response token by the model of {role}, as the training engine "
        "computes it, float32 [rows, ragged]",
    ),
    "values": Field(
        Kind.VALUES,
        "the value that {role} gives before each response token, float32 [rows, ragged]",
    ),
    "scores": Field(
        Kind.SCORES,
        "weighted sum of the rewards of {role}, one of them, or what its model says, float32 "
        "[rows]",
    ),
    "valid": Field(
        Kind.TRUTH, "whether every verifier and service of {role} answered, bool [rows]"
    ),
}
"""What a role writes is named after it, so that two critics, or a reward and a cost, live side by
side."""


def log_probs_of(role: str) -> str:
    """The field with a language model's log-probabilities."""
    return f"{role}_log_probs"


def values_of(role: str) -> str:
    """The field with a critic's values."""
    return f"{role}_values"


def scores_of(role: str) -> str:
    """The field with a reward's scores."""
    return f"{role}_scores"


def term_scores_of(role: str, reward: str) -> str:
    """The field with the scores of one of several rewards of a role."""
    return scores_of(f"{role}_{reward}")


def valid_of(role: str) -> str:
    """The field that says which rows a reward could score."""
    return f"{role}_valid"


def role_of(field: str) -> str:
    """The role after which a field is named."""
    return next(
        (field.removesuffix(f"_{what}") for what in _OF_ROLES if field.endswith(f"_{what}")), field
    )


def field_of(name: str) -> Field | None:
    """What a field of this name holds. None: it is a custom operation's."""
    if name in FIELDS:
        return FIELDS[name]
    role = role_of(name)
    if role == name:
        return None
    found = _OF_ROLES[name.removeprefix(f"{role}_")]
    return replace(found, meaning=found.meaning.format(role=role))


@dataclass(frozen=True)
class Reads:
    """The setting names a column that is read."""

    kinds: frozenset[Kind]
    """What it may hold."""
    own: bool = False
    """Whether it must be of the role that is trained, or of one that sampled the batch."""


@dataclass(frozen=True)
class Writes:
    """The setting names a column that is written."""

    kind: Kind | None
    """What it holds. None: what it held before."""


_LOG_PROBS = frozenset({Kind.LOG_PROBS})
_CREDITS = frozenset({Kind.REWARDS, Kind.ADVANTAGES, Kind.RETURNS})
"""What each token is credited with: one may stand for another, as a return for an advantage."""

Scores = Annotated[str, Reads(frozenset({Kind.SCORES}))]
Valid = Annotated[str, Reads(frozenset({Kind.TRUTH}))]
MaybeValid = Annotated[str | None, Reads(frozenset({Kind.TRUTH}))]
Values = Annotated[str, Reads(frozenset({Kind.VALUES}))]
OwnValues = Annotated[str, Reads(frozenset({Kind.VALUES}), own=True)]
LogProbs = Annotated[str, Reads(_LOG_PROBS)]
OwnLogProbs = Annotated[str, Reads(_LOG_PROBS, own=True)]
MaybeLogProbs = Annotated[str | None, Reads(_LOG_PROBS)]
Credits = Annotated[str, Reads(_CREDITS)]
ChangedCredits = Annotated[str, Reads(_CREDITS), Writes(None)]
Preference = Annotated[str, Reads(frozenset({Kind.PREFERENCE}))]
Multiplier = Annotated[str, Reads(frozenset({Kind.MULTIPLIER}))]
NewScores = Annotated[str, Writes(Kind.SCORES)]
NewTruth = Annotated[str, Writes(Kind.TRUTH)]
NewRewards = Annotated[str, Writes(Kind.REWARDS)]
NewAdvantages = Annotated[str, Writes(Kind.ADVANTAGES)]
NewReturns = Annotated[str, Writes(Kind.RETURNS)]
NewMultiplier = Annotated[str, Writes(Kind.MULTIPLIER)]
NewPreference = Annotated[str, Writes(Kind.PREFERENCE)]
NewTexts = Annotated[str, Writes(Kind.TEXT)]


@dataclass(frozen=True)
class Input:
    """A column that is read."""

    column: str
    reads: Reads | None
    """What it may hold. None: anything."""
    setting: str | None = None
    """Which names it. None: it is always this one."""


@dataclass(frozen=True)
class Output:
    """A column that is written."""

    column: str
    kind: Kind | None
    """What it holds. None: nobody knows."""
    keeps_kind: bool = False
    """Whether it holds what it held before."""


def fixed_input(column: str) -> Input:
    """A column of the system's own names."""
    return Input(column, Reads(frozenset({FIELDS[column].kind})))


class ColumnSettings:
    """A dataclass whose settings name columns."""

    always: ClassVar[tuple[str, ...]] = ()
    """Columns that it reads by their own names."""
    _columns: ClassVar[tuple[tuple[str, Reads | None, Writes | None], ...]]

    def __init_subclass__(cls) -> None:
        cls._columns = tuple(_named_columns(cls))

    def __post_init__(self) -> None:
        """Refuse names that no field may have.

        Raises:
            FlowError: there is one.
        """
        for setting, _, _ in self._columns:
            column = getattr(self, setting)
            if column is not None or setting not in self.unused():
                check(type(self).__name__, setting, column, is_name(column), ALLOWED_NAMES)

    def unused(self) -> frozenset[str]:
        """Settings whose columns are not read, because of others."""
        return frozenset()

    def inputs(self) -> Iterator[Input]:
        """The columns that it reads."""
        yield from map(fixed_input, self.always)
        for setting, reads, _ in self._columns:
            if reads is not None and setting not in self.unused():
                yield Input(getattr(self, setting), reads, setting)

    def outputs(self) -> Iterator[Output]:
        """The columns that it makes."""
        for setting, _, writes in self._columns:
            if writes is not None:
                yield Output(getattr(self, setting), writes.kind, keeps_kind=writes.kind is None)

    @property
    def counts_tokens(self) -> bool:
        """Whether it is about single tokens of responses, of which only those count that the
        batch's response mask keeps: it reads or makes a number for each."""
        taken = (kind for each in self.inputs() if each.reads for kind in each.reads.kinds)
        made = (each.kind for each in self.outputs())
        return not PER_TOKEN.isdisjoint({*taken, *made})

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields that it needs."""
        return tuple(dict.fromkeys(each.column for each in self.inputs()))

    @property
    def writes(self) -> tuple[str, ...]:
        """Fields that it makes."""
        return tuple(each.column for each in self.outputs())


def _named_columns(kind: type) -> Iterator[tuple[str, Reads | None, Writes | None]]:
    """A class's settings that name columns, in order."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        marks = get_args(hint)[1:]
        reads = next((each for each in marks if isinstance(each, Reads)), None)
        writes = next((each for each in marks if isinstance(each, Writes)), None)
        if reads or writes:
            yield name, reads, writes


class ColumnReader(Protocol):
    """A loss or an operation."""

    def inputs(self) -> Iterator[Input]:
        """The columns that it reads."""


def inputs_of(reader: ColumnReader, available: Collection[str]) -> Iterator[Input]:
    """The columns that an operation or a loss takes of a batch.

    Args:
        reader: names its own columns.
        available: the batch's.
    """
    yield from reader.inputs()
    counts_tokens = isinstance(reader, ColumnSettings) and reader.counts_tokens
    if counts_tokens and RESPONSE_MASK in available:
        yield fixed_input(RESPONSE_MASK)


def reads_of(reader: ColumnReader, available: Collection[str]) -> set[str]:
    """The names of these columns."""
    return {each.column for each in inputs_of(reader, available)}
