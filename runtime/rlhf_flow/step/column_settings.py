"""Settings of losses and operations that name columns.

Such a setting is annotated with `Reads`, `Writes` or both. The columns of a call and the checks of
the trace follow from these annotations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, get_args, get_type_hints

from rlhf_flow.step.checks import check
from rlhf_flow.step.columns import (
    ALLOWED_NAMES,
    COLUMNS,
    KEPT_TOKENS,
    PER_TOKEN,
    RESPONSE_MASK,
    Kind,
    is_name,
)


@dataclass(frozen=True)
class Reads:
    """Marks a setting that names a column to read."""

    kinds: frozenset[Kind]
    """Accepted kinds."""
    own: bool = False
    """True: only a column of the role that is trained, or of one that sampled the batch."""


@dataclass(frozen=True)
class Writes:
    """Marks a setting that names a column to write."""

    kind: Kind | None
    """Kind of the column. None: the kind that it had before."""


_LOG_PROBS = frozenset({Kind.LOG_PROBS})

# Numbers that credit a token. One may stand for another, as a return for an advantage.
_CREDITS = frozenset({Kind.REWARDS, Kind.ADVANTAGES, Kind.RETURNS})

# Types of settings that name columns. `New...` are written, `Changed...` read and written again.
# `Own...` must come from the role that is trained: a ratio or a clip against another model's column
# would be meaningless. `Maybe...` may be None.
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
MaybeMultiplier = Annotated[str | None, Reads(frozenset({Kind.MULTIPLIER}))]
NewScores = Annotated[str, Writes(Kind.SCORES)]
NewTruth = Annotated[str, Writes(Kind.TRUTH)]
NewRewards = Annotated[str, Writes(Kind.REWARDS)]
NewAdvantages = Annotated[str, Writes(Kind.ADVANTAGES)]
NewReturns = Annotated[str, Writes(Kind.RETURNS)]
NewMultiplier = Annotated[str, Writes(Kind.MULTIPLIER)]
NewPreference = Annotated[str, Writes(Kind.PREFERENCE)]
NewTexts = Annotated[str, Writes(Kind.TEXT)]


@dataclass(frozen=True)
class ColumnInput:
    """A column that a loss or an operation reads."""

    column: str
    reads: Reads | None
    """Accepted kinds. None: any."""
    setting: str | None = None
    """The setting that names the column. None: the name is fixed."""


@dataclass(frozen=True)
class ColumnOutput:
    """A column that an operation writes."""

    column: str
    kind: Kind | None
    """None: unknown."""
    keeps_kind: bool = False
    """True: the column keeps the kind that it had."""


def fixed_input(column: str) -> ColumnInput:
    """An input whose name no setting can change."""
    return ColumnInput(column, Reads(frozenset({COLUMNS[column].kind})))


class ColumnReader(Protocol):
    """A loss or an operation."""

    def inputs(self) -> Iterator[ColumnInput]:
        """The columns that it reads."""


class ColumnSettings:
    """A dataclass whose settings name columns."""

    always: ClassVar[tuple[str, ...]] = ()
    """Columns that it reads under fixed names."""
    compares_with_sampling: ClassVar[bool] = False
    """True for a loss on log-probabilities of sampled responses under the distribution that was
    sampled: at its temperature, and over the tokens that it kept."""
    # Per setting that names a column: its name, and how it is used.
    _columns: ClassVar[tuple[tuple[str, Reads | None, Writes | None], ...]]

    def __init_subclass__(cls) -> None:
        # Once per class: resolving annotations is slow, and every call reads them.
        cls._columns = tuple(_named_columns(cls))

    def __post_init__(self) -> None:
        """Check the names of columns.

        Raises:
            FlowError: a name that no column may have.
        """
        for setting, _, _ in self._columns:
            column = getattr(self, setting)
            # Only a setting that is not used may be None.
            if column is not None or setting not in self.unused():
                check(type(self).__name__, setting, column, is_name(column), ALLOWED_NAMES)

    def unused(self) -> frozenset[str]:
        """Settings whose columns are not read, given the other settings."""
        return frozenset()

    def inputs(self) -> Iterator[ColumnInput]:
        """The columns that it reads."""
        yield from map(fixed_input, self.always)
        for setting, reads, _ in self._columns:
            if reads is not None and setting not in self.unused():
                yield ColumnInput(getattr(self, setting), reads, setting)

    def outputs(self) -> Iterator[ColumnOutput]:
        """The columns that it writes."""
        for setting, _, writes in self._columns:
            if writes is not None:
                column = getattr(self, setting)
                yield ColumnOutput(column, writes.kind, keeps_kind=writes.kind is None)

    @property
    def counts_tokens(self) -> bool:
        """True if it reads or writes a number per response token."""
        # Masked tokens must not count in such numbers, so the response mask applies.
        inputs = (kind for column in self.inputs() if column.reads for kind in column.reads.kinds)
        outputs = (column.kind for column in self.outputs())
        return not PER_TOKEN.isdisjoint({*inputs, *outputs})

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that it reads."""
        # Two settings may name one column.
        return tuple(dict.fromkeys(column.column for column in self.inputs()))

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the columns that it writes."""
        return tuple(column.column for column in self.outputs())

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the numbers that it keeps from step to step: of its multipliers."""
        return tuple(one.column for one in self.outputs() if one.kind is Kind.MULTIPLIER)


def _named_columns(kind: type) -> Iterator[tuple[str, Reads | None, Writes | None]]:
    """The settings of a class that name columns, in order."""
    # include_extras keeps the marks of Annotated.
    for name, hint in get_type_hints(kind, include_extras=True).items():
        marks = get_args(hint)[1:]
        reads = next((mark for mark in marks if isinstance(mark, Reads)), None)
        writes = next((mark for mark in marks if isinstance(mark, Writes)), None)
        if reads or writes:
            yield name, reads, writes


def column_inputs(reader: ColumnReader, available: Collection[str]) -> Iterator[ColumnInput]:
    """The columns that a loss or an operation reads of a batch, the response mask and the kept
    tokens included.

    Args:
        reader: a loss or an operation.
        available: columns of the batch.
    """
    yield from reader.inputs()
    # The mask needs no setting: otherwise one loss or metric could count tokens that another
    # excludes. A custom operation gets the mask only if it lists it.
    counts_tokens = isinstance(reader, ColumnSettings) and reader.counts_tokens
    if counts_tokens and RESPONSE_MASK in available:
        yield fixed_input(RESPONSE_MASK)
    compares = isinstance(reader, ColumnSettings) and reader.compares_with_sampling
    if compares and KEPT_TOKENS in available:
        yield fixed_input(KEPT_TOKENS)


def columns_read_by(reader: ColumnReader, available: Collection[str]) -> set[str]:
    """Names of `column_inputs`."""
    return {column.column for column in column_inputs(reader, available)}
