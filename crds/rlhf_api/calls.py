"""Kinds of model calls, and the phases of a step in which they run."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Annotated

from pydantic import Field, model_validator

from rlhf_api.base import CALL_PATTERN, Contract, Identifier

# A call site: `actor.generate`; the second one of that kind is `actor.generate#2`; in a region
# `every-10/actor.log_probs`.
CallId = Annotated[str, Field(min_length=1, max_length=256, pattern=CALL_PATTERN)]


class CallKind(StrEnum):
    """Kind of a model call."""

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
    """Copies another role's weights."""
    SAVE = "Save"
    """Writes lines of a step to a file of the run's folder."""
    RESHARD = "Reshard"
    """Moves a role's weights into its generation engines. Added by the plan."""
    FINISH = "Finish"
    """Generates the responses that were unfinished when fused calls began. Added by the plan."""
    RELEASE = "Release"
    """Frees the memory of a role's generation engines. Added by the plan."""
    LOAD = "Load"
    """Loads an offloaded role's weights, gradients and optimizer state. Added by the plan."""
    OFFLOAD = "Offload"
    """Frees that device memory; the host keeps a copy. Added by the plan."""


# Calls that the plan adds; a step's code does not make them.
TRANSITIONS = frozenset(
    {CallKind.RESHARD, CallKind.FINISH, CallKind.RELEASE, CallKind.LOAD, CallKind.OFFLOAD}
)

# Their methods.
RESHARD, FINISH, RELEASE, LOAD, OFFLOAD = "reshard", "finish", "release", "load", "offload"


# Effect of calls that write no field. Kinds that are not listed change weights.
EFFECTS = {
    CallKind.SAVE: "a file",
    CallKind.FINISH: "responses",
    **dict.fromkeys((CallKind.RELEASE, CallKind.LOAD, CallKind.OFFLOAD), "memory"),
}


class Phase(Contract):
    """A part of a step with constant memory use on a device: calls of one kind of one role run.
    Shown to people as actor.train."""

    role: Identifier | None = None
    """The role that is called. None: the device takes part in no call."""
    kind: CallKind | None = None
    """Kind of the calls. None if and only if role is None."""

    @model_validator(mode="after")
    def _require_both_or_neither(self) -> Phase:
        if (self.role is None) != (self.kind is None):
            raise ValueError(
                f"half a phase: got role {self.role} and kind {self.kind}, allowed both, or "
                "neither for a device that takes part in no call; plan the job again"
            )
        return self

    def __eq__(self, other: object) -> bool:
        # pydantic's own comparison takes ten times as long, and a search compares millions.
        if not isinstance(other, Phase):
            return NotImplemented
        return self is other or (self.kind is other.kind and self.role == other.role)

    def __hash__(self) -> int:
        return hash((self.role, self.kind))

    def __str__(self) -> str:
        if self.role is None or self.kind is None:
            return "idle"
        return f"{self.role}.{self.kind.name.lower()}"


# Cached: dictionaries keyed by phase then find it by identity, without comparing fields.
@lru_cache(maxsize=4096)
def call_phase(role: str, kind: CallKind) -> Phase:
    """The phase of a role's calls of one kind."""
    return Phase(role=role, kind=kind)


# The phase of devices that take part in no call.
IDLE = Phase()
