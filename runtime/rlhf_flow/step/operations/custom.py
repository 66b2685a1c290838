"""Custom: an operation by a user's function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from rlhf_flow.errors import FlowError
from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, check_member, checked_settings, is_number, suggest
from rlhf_flow.step.column_settings import ColumnInput, ColumnOutput
from rlhf_flow.step.columns import Kind
from rlhf_flow.step.operations.scope import Scope

# Name of the argument with the numbers that a function keeps.
STATE = "state"
Parameter = bool | int | float | str


@checked_settings
@dataclass(frozen=True)
class Custom:
    """A user's function from the columns that it reads, by name, to those that it writes.

    Raises:
        FlowError: an entry point of another form, a single string instead of a list of names, an
            invalid name or kind, or a protocol beside scope=Scope.BATCH.
    """

    entrypoint: str
    """`package.module:function`."""
    reads: Sequence[str]
    """Columns that the function gets."""
    writes: Sequence[str]
    """Columns that it returns. They may replace columns that it reads, but no generated ones."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Keyword arguments of the function."""
    scope: Scope = Scope.GROUP
    """Rows that the function needs at once: its result of one row may depend on them."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """Kinds of the columns that it writes. A column without an entry has the kind of its name in
    `rlhf_flow.step.columns`, or else passes every check of kinds."""
    keeps: Mapping[str, float] = field(default_factory=dict)
    """Numbers that it keeps from step to step, with their initial values; also their names in
    checkpoints. The function gets them as the dict `state` and updates it. Needs
    scope=Scope.BATCH."""
    protocol: str | None = None
    """`package.module:NAME` of a `rlhf_runtime.dataplane.protocol.Protocol`, which assigns rows to
    ranks and selects the ranks whose outputs count. None: the protocol of every compute call."""

    def __post_init__(self) -> None:
        if not _is_entrypoint(self.entrypoint):
            raise FlowError(
                f"an operation's entry point names no function: got {self.entrypoint!r}, "
                "allowed package.module:function; write it so"
            )
        for label, names in (("reads", self.reads), ("writes", self.writes)):
            self._check_names(label, names)
            # Copies: the user's list may change after the trace. The class is frozen.
            object.__setattr__(self, label, tuple(names))
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "keeps", dict(self.keeps))
        owner = f"the operation {self.entrypoint}"
        check_member(owner, "scope", self.scope, Scope)
        for written, kind in self.kinds.items():
            check_member(owner, "kinds", kind, Kind)
            if written not in self.writes:
                raise FlowError(
                    f"{owner} says what a column holds that it does not write: got {written}, "
                    f"allowed {', '.join(self.writes)}; "
                    f"{suggest(written, self.writes, 'add it to writes, or remove it')}"
                )
        self._check_keeps(owner)
        self._check_protocol(owner)

    def inputs(self) -> Iterator[ColumnInput]:
        """The columns that it reads, of any kind."""
        # Only the function knows what its columns mean.
        return (ColumnInput(name, None) for name in self.reads)

    def outputs(self) -> Iterator[ColumnOutput]:
        """The columns that it writes."""
        for name in self.writes:
            spec = columns.column_spec(name)
            yield ColumnOutput(name, self.kinds.get(name, spec.kind if spec else None))

    @property
    def arguments(self) -> Mapping[str, object]:
        """Keyword arguments of the function before the first step."""
        return {**self.parameters, STATE: dict(self.keeps)} if self.keeps else self.parameters

    def _check_keeps(self, owner: str) -> None:
        for name, initial in self.keeps.items():
            allowed = f"{columns.ALLOWED_NAMES}, with a finite number"
            is_fit = columns.is_name(name) and is_number(initial, minimum=-inf)
            check(owner, "keeps", {name: initial}, is_fit, allowed)
        # Only a function that sees all rows updates its numbers equally on every rank.
        if self.keeps and self.scope is not Scope.BATCH:
            raise FlowError(
                f"{owner} keeps numbers, of which every rank would have others: got "
                f"keeps={dict(self.keeps)!r} and scope={self.scope}, allowed scope=Scope.BATCH, "
                "where each rank sees all rows; set it"
            )
        # Both are keyword arguments of the function.
        if self.keeps and STATE in self.parameters:
            raise FlowError(
                f"{owner} has a parameter with the name of its kept numbers: got {STATE}, allowed "
                "any other name; rename it"
            )

    def _check_protocol(self, owner: str) -> None:
        if self.protocol is None:
            return
        if not _is_entrypoint(self.protocol):
            raise FlowError(
                f"the protocol of the operation {self.entrypoint} names no pair: got "
                f"{self.protocol!r}, allowed package.module:NAME; write it so"
            )
        # A protocol decides which rank computes which rows; here every rank computes all.
        if self.scope is Scope.BATCH:
            raise FlowError(
                f"{owner} has a protocol, and sees all rows on every rank anyway: got "
                f"scope=Scope.BATCH and protocol={self.protocol!r}, allowed one of them; remove "
                "the other"
            )

    def _check_names(self, label: str, names: Sequence[str]) -> None:
        # A text is a sequence, too: each letter would become a column.
        if isinstance(names, str):
            raise FlowError(
                f"{label} of the operation {self.entrypoint} is a text: got {names!r}, "
                f"allowed a list of column names; write [{names!r}]"
            )
        if invalid := [name for name in names if not columns.is_name(name)]:
            raise FlowError(
                f"{label} of the operation {self.entrypoint} has a name that no column may "
                f"have: got {invalid[0]!r}, allowed {columns.ALLOWED_NAMES}; rename it"
            )


def _is_entrypoint(text: object) -> bool:
    """True if it has the form `package.module:name`."""
    module, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    return bool(module and colon) and name.isidentifier()
