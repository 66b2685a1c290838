"""What calls of models do, and the phases of a step in which they do it."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Annotated

from pydantic import Field, model_validator

from rlhf_api.base import CALL_PATTERN, Contract, Identifier

CallId = Annotated[str, Field(min_length=1, max_length=256, pattern=CALL_PATTERN)]
"""A call site: `actor.generate`, its second of the kind `actor.generate#2`, in a region
`every-10/actor.log_probs`."""


class CallKind(StrEnum):
    """What a model call does."""

    GENERATE = "Generate"
    """Autoregressive sampling."""
    INFER = "Infer"
    """One forward pass."""
    TRAIN = "Train"
    """Forward, backward and optimizer steps."""
    SCORE = "Score"
    """Verifiers on the host."""
    COMPUTE = "Compute"
    """Numerics without a model."""
    COPY = "Copy"
    """Another role's weights taken over."""
    SAVE = "Save"
    """Lines of a step, written to a file of the run's folder."""
    RESHARD = "Reshard"
    """A role's weights brought into its generation engines; made by the plan, not by a step."""
    FINISH = "Finish"
    """Responses that were left when others began with those that had ended; made by the plan."""
    RELEASE = "Release"
    """The memory of a role's generation engines given back; made by the plan, too."""
    LOAD = "Load"
    """An offloaded role's weights, gradients and optimizer brought to its devices; by the plan."""
    OFFLOAD = "Offload"
    """Their devices' memory given back, with a copy on the host; by the plan."""


TRANSITIONS = frozenset(
    {CallKind.RESHARD, CallKind.FINISH, CallKind.RELEASE, CallKind.LOAD, CallKind.OFFLOAD}
)
"""Calls that the plan makes, and no step."""

RESHARD, FINISH, RELEASE, LOAD, OFFLOAD = "reshard", "finish", "release", "load", "offload"
"""Their methods."""


EFFECTS = {
    CallKind.SAVE: "a file",
    CallKind.FINISH: "responses",
    **dict.fromkeys((CallKind.RELEASE, CallKind.LOAD, CallKind.OFFLOAD), "memory"),
}
"""What calls change that write no field; weights, if nothing is said."""


class Phase(Contract):
    """A part of a step during which a device's memory is used alike: while calls of one kind of a
    role run. People see it as actor.train."""

    role: Identifier | None = None
    """Whose calls. None: the device takes part in no call."""
    kind: CallKind | None = None
    """Of which kind. None as the role is."""

    @model_validator(mode="after")
    def _is_whole(self) -> Phase:
        if (self.role is None) != (self.kind is None):
            raise ValueError(
                f"half a phase: got role {self.role} and kind {self.kind}, allowed both, or "
                "neither for a device that takes part in no call; plan the job again"
            )
        return self

    def __eq__(self, other: object) -> bool:
        # As pydantic's, which takes ten times as long: planners compare millions of them.
        if not isinstance(other, Phase):
            return NotImplemented
        return self is other or (self.kind is other.kind and self.role == other.role)

    def __hash__(self) -> int:
        return hash((self.role, self.kind))

    def __str__(self) -> str:
        if self.role is None or self.kind is None:
            return "idle"
        return f"{self.role}.{self.kind.name.lower()}"


@lru_cache(maxsize=4096)
def call_phase(role: str, kind: CallKind) -> Phase:
    """The phase of a role's calls of a kind: the same object whenever it is asked for, so that
    sums by phase find it at once."""
    return Phase(role=role, kind=kind)


IDLE = Phase()
"""The phase of devices that take part in no call."""
