"""ModelCall: one call site of a step, the same when traced and when run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf_api.plan import CallKind
from rlhf_flow.losses import Loss
from rlhf_flow.operations import Operation

Option = bool | int | float | str | None | Loss | tuple[Operation, ...]
"""A call's options: scalars, the loss of a train call, the operations of a compute call."""


@dataclass(frozen=True)
class ModelCall:
    """A primitive of a role, with the fields it reads and writes and its options.

    It is plain data: it pickles, and two traces of one step compare equal.
    """

    id: str
    """Where it stands in the step: `actor.generate`, `actor.generate#2`,
    `every-10/actor.log_probs`."""
    role: str
    """Whose call it is; a compute call belongs to the role whose ranks compute."""
    method: str
    """The primitive's name."""
    kind: CallKind
    """What it does."""
    reads: tuple[str, ...]
    """Fields it needs, sorted."""
    writes: tuple[str, ...]
    """Fields it makes, sorted."""
    carries: tuple[str, ...] = ()
    """Fields it reads and passes on to the new batch that it starts, sorted; only generate."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Every option of the primitive, defaults filled in."""

    @property
    def starts_batch(self) -> bool:
        """Whether the result has rows of its own instead of the rows it read."""
        return self.kind is CallKind.GENERATE
