"""Which columns operations and losses take: their settings name them, and say of which kind.

A setting that names a column is annotated with `Reads`, `Writes` or both. What a call reads and
writes follows from that, and so does what the trace refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, get_args, get_type_hints

from rlhf_flow.checks import check
from rlhf_flow.fields import ALLOWED_NAMES, FIELDS, PER_TOKEN, Kind, is_name


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
