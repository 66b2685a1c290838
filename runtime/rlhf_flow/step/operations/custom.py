"""Operations of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from rlhf_flow.errors import FlowError
from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, check_member, checked_settings, is_number, suggest
from rlhf_flow.step.columns import (
    Input,
    Kind,
    Output,
)
from rlhf_flow.step.operations.scope import Scope

STATE = "state"
"""The argument by which a function gets what it keeps."""
Parameter = bool | int | float | str


@checked_settings
@dataclass(frozen=True)
class Custom:
    """A function of the user's own: it gets the columns that it reads by name, of all rows that
    its scope names, and returns those that it writes.

    Raises:
        FlowError: an entry point has another form, a list of names is a single string, a name is
            none that a field may have, a kind is none, or the scope leaves a protocol nothing to
            cut.
    """

    entrypoint: str
    """`package.module:function`."""
    reads: Sequence[str]
    """Fields that it needs."""
    writes: Sequence[str]
    """Fields that it makes; they may replace fields that it reads, but for what was generated."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Keyword arguments of the function."""
    scope: Scope = Scope.GROUP
    """Which rows it has to see for the result of one."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """What fields that it writes hold. One that is not named holds what its name means in
    `rlhf_flow.step.columns`; where that says nothing it is taken for whatever reads it."""
    keeps: Mapping[str, float] = field(default_factory=dict)
    """Numbers that it keeps from step to step, with what they are before the first one; their names
    in checkpoints as well. The function gets them as `state`, a dict, and changes them there. Needs
    scope=Scope.BATCH, so that they come out the same on every rank."""
    protocol: str | None = None
    """`package.module:NAME` of a `rlhf_runtime.dataplane.protocol.Protocol`: which rows a rank
    gets, and which ranks' outputs count. None: that of every compute call."""

    def __post_init__(self) -> None:
        if not _is_entrypoint(self.entrypoint):
            raise FlowError(
                f"an operation's entry point names no function: got {self.entrypoint!r}, "
                "allowed package.module:function; write it so"
            )
        for label, names in (("reads", self.reads), ("writes", self.writes)):
            self._check_names(label, names)
            object.__setattr__(self, label, tuple(names))
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "keeps", dict(self.keeps))
        owner = f"the operation {self.entrypoint}"
        check_member(owner, "scope", self.scope, Scope)
        for written, kind in self.kinds.items():
            check_member(owner, "kinds", kind, Kind)
            if written not in self.writes:
                raise FlowError(
                    f"{owner} says what a field holds that it does not write: got {written}, "
                    f"allowed {', '.join(self.writes)}; "
                    f"{suggest(written, self.writes, 'add it to writes, or remove it')}"
                )
        self._check_keeps(owner)
        self._check_protocol(owner)

    def inputs(self) -> Iterator[Input]:
        """The columns that it reads, of whatever kind."""
        return (Input(name, None) for name in self.reads)

    def outputs(self) -> Iterator[Output]:
        """The columns that it makes."""
        for name in self.writes:
            known = columns.field_of(name)
            yield Output(name, self.kinds.get(name, known.kind if known else None))

    @property
    def arguments(self) -> Mapping[str, object]:
        """Keyword arguments of the function before the first step."""
        return {**self.parameters, STATE: dict(self.keeps)} if self.keeps else self.parameters

    def _check_keeps(self, owner: str) -> None:
        for name, initial in self.keeps.items():
            allowed = f"{columns.ALLOWED_NAMES}, with a finite number"
            is_fit = columns.is_name(name) and is_number(initial, least=-inf)
            check(owner, "keeps", {name: initial}, is_fit, allowed)
        if self.keeps and self.scope is not Scope.BATCH:
            raise FlowError(
                f"{owner} keeps numbers, of which every rank would have others: got "
                f"keeps={dict(self.keeps)!r} and scope={self.scope}, allowed scope=Scope.BATCH, "
                "where each rank sees all rows; set it"
            )
        if self.keeps and STATE in self.parameters:
            raise FlowError(
                f"{owner} has a parameter of the name of what it keeps: got {STATE}, allowed any "
                "other name; rename it"
            )

    def _check_protocol(self, owner: str) -> None:
        if self.protocol is None:
            return
        if not _is_entrypoint(self.protocol):
            raise FlowError(
                f"the protocol of the operation {self.entrypoint} names no pair: got "
                f"{self.protocol!r}, allowed package.module:NAME; write it so"
            )
        if self.scope is Scope.BATCH:
            raise FlowError(
                f"{owner} has a protocol, and sees all rows on every rank anyway: got "
                f"scope=Scope.BATCH and protocol={self.protocol!r}, allowed one of them; remove "
                "the other"
            )

    def _check_names(self, label: str, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise FlowError(
                f"{label} of the operation {self.entrypoint} is a text: got {names!r}, "
                f"allowed a list of field names; write [{names!r}]"
            )
        if odd := [each for each in names if not columns.is_name(each)]:
            raise FlowError(
                f"{label} of the operation {self.entrypoint} has a name that no field may "
                f"have: got {odd[0]!r}, allowed {columns.ALLOWED_NAMES}; rename it"
            )


def _is_entrypoint(given: object) -> bool:
    """Whether it has the form `package.module:name`."""
    module, colon, name = given.partition(":") if isinstance(given, str) else ("", "", "")
    return bool(module and colon) and name.isidentifier()
