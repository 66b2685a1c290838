"""ModelCall: one call site of a step, the same when traced and when run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_flow.errors import FlowError
from rlhf_flow.step.checks import check, is_count, is_number
from rlhf_flow.step.columns import ALLOWED_NAMES, is_name
from rlhf_flow.step.losses import BradleyTerry, Dpo, Loss
from rlhf_flow.step.operations import Custom, Operation, Scope, widest

SCORING = frozenset({"scores", "scores_of_texts"})
"""Primitives by which a model scores responses."""


@dataclass(frozen=True)
class GenerateOptions:
    """How responses are sampled.

    Raises:
        FlowError: values that mean nothing.
    """

    samples: int
    """Responses to each prompt."""
    temperature: float | None = None
    """None: rollout.temperature."""
    greedy: bool = False
    """Whether the likeliest token is taken every time."""

    def __post_init__(self) -> None:
        check("generate", "samples", self.samples, is_count(self.samples), "a number of at least 1")
        is_given = self.temperature is not None
        is_warm = is_number(self.temperature) and self.temperature != 0
        allowed = "a number above 0 (greedy=True for greedy answers)"
        check("generate", "temperature", self.temperature, is_warm or not is_given, allowed)
        check("generate", "greedy", self.greedy, isinstance(self.greedy, bool), "true or false")
        is_clear = not (self.greedy and is_given)
        check("generate", "temperature", self.temperature, is_clear, "none beside greedy=True")


@dataclass(frozen=True)
class TrainOptions:
    """What a role is trained by, and when.

    Raises:
        FlowError: a number of steps that is none.
    """

    loss: Loss
    from_step: int = 0
    """Steps at the beginning in which it is not trained."""
    auxiliary: tuple[Loss, ...] = ()
    """Losses on batches of their own, added to it."""

    def __post_init__(self) -> None:
        is_step = is_count(self.from_step, least=0)
        check("train", "from_step", self.from_step, is_step, "a step number of at least 0")


@dataclass(frozen=True)
class ComputeOptions:
    """What is computed.

    Raises:
        FlowError: operations of several protocols.
    """

    operations: tuple[Operation, ...]
    """One after the other."""

    def __post_init__(self) -> None:
        used = {_protocol_of(each): each for each in self.operations}
        if len(used) > 1:
            got = ", ".join(
                f"{name_of(operation)} with {protocol or 'none of its own'}"
                for protocol, operation in used.items()
            )
            raise FlowError(
                f"a compute call has operations of several protocols: got {got}, allowed one for "
                "all operations of a call; make a call of its own for each"
            )

    @property
    def scope(self) -> Scope:
        """Which rows the result of one row depends on: the widest of its operations'."""
        return widest(each.scope for each in self.operations)

    @property
    def sees_all(self) -> bool:
        """Whether one of them is a function that every rank has to give all rows."""
        return any(isinstance(o, Custom) and o.scope is Scope.BATCH for o in self.operations)

    @property
    def protocol(self) -> str | None:
        """The entry point of the operations' protocol; None: that of the call's kind."""
        return next((found for each in self.operations if (found := _protocol_of(each))), None)


@dataclass(frozen=True)
class CopyOptions:
    """Whose weights are taken over."""

    source: str
    """The role."""


@dataclass(frozen=True)
class SaveOptions:
    """Where lines are written.

    Raises:
        FlowError: a name that no folder may have.
    """

    name: str
    """Of the folder, in the run's folder of what is saved."""

    def __post_init__(self) -> None:
        check("save", "name", self.name, is_name(self.name), ALLOWED_NAMES)


Options = GenerateOptions | TrainOptions | ComputeOptions | CopyOptions | SaveOptions | None


@dataclass(frozen=True)
class ModelCall:
    """A primitive of a role, with the fields it reads and writes and its options.

    It is plain data: it pickles, and two traces of one step compare equal.
    """

    id: str
    """Where it stands in the step: `actor.generate`, `actor.generate#2`,
    `every-10/actor.log_probs`."""
    role: str | None
    """Whose call it is; None: it computes without a model."""
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
    options: Options = None
    """None: it has none."""
    auxiliary_reads: tuple[tuple[str, ...], ...] = ()
    """Fields it needs of the batch of each auxiliary loss, sorted."""

    def uses(self, role: str) -> bool:
        """Whether it works with a role's weights."""
        return self.role == role or self.copied_role == role

    def changes(self, role: str) -> bool:
        """Whether it changes a role's weights."""
        return self.role == role and self.kind in (CallKind.TRAIN, CallKind.COPY)

    @property
    def protocol(self) -> str | None:
        """The entry point of its transfer protocol, where that is the user's own."""
        return self.options.protocol if isinstance(self.options, ComputeOptions) else None

    @property
    def copied_role(self) -> str | None:
        """Whose weights it takes over; None: nobody's."""
        return self.options.source if isinstance(self.options, CopyOptions) else None

    @property
    def compares_responses(self) -> bool:
        """Whether it compares responses to one prompt, which then stay together: it trains on their
        differences, or gives equal ones one score."""
        options = self.options
        if isinstance(options, TrainOptions):
            return isinstance(options.loss, BradleyTerry | Dpo)
        return self.method in SCORING


def _protocol_of(operation: Operation) -> str | None:
    return operation.protocol if isinstance(operation, Custom) else None


def name_of(operation: Operation) -> str:
    """An operation's name, for a person."""
    return operation.entrypoint if isinstance(operation, Custom) else type(operation).__name__


class CallSites:
    """Numbers the calls of one pass of a step.

    The first call of a kind is `actor.generate`, the second `actor.generate#2`. Inside a region ids
    are prefixed and numbered anew at every entry, so all rounds of a region have the same ids.
    """

    def __init__(self) -> None:
        self._prefix = ""
        self._seen: Counter[str] = Counter()

    def number(self, site: str) -> str:
        """The id of the next call or region of a kind, such as `actor.generate` or `every-10`."""
        self._seen[site] += 1
        count = self._seen[site]
        return f"{self._prefix}{site}" + (f"#{count}" if count > 1 else "")

    @contextmanager
    def inside(self, region: str) -> Iterator[None]:
        """One round of a region, named by its id."""
        prefix, seen = self._prefix, self._seen
        self._prefix, self._seen = f"{region}/", Counter()
        try:
            yield
        finally:
            self._prefix, self._seen = prefix, seen
