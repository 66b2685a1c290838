"""ModelCall: one call site of a step, equal in trace and run; and the ids of call sites."""

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

# Primitives by which a model scores responses.
SCORING = frozenset({"scores", "scores_of_texts"})


@dataclass(frozen=True)
class GenerateOptions:
    """Options of sampling.

    Raises:
        FlowError: an invalid value.
    """

    samples: int
    """Responses per prompt."""
    temperature: float | None = None
    """None: rollout.temperature."""
    greedy: bool = False
    """True: always take the likeliest token."""

    def __post_init__(self) -> None:
        check("generate", "samples", self.samples, is_count(self.samples), "a number of at least 1")
        # Temperature 0 would divide logits by 0; greedy=True says the same exactly.
        is_set = self.temperature is not None
        is_warm = is_number(self.temperature) and self.temperature != 0
        allowed = "a number above 0 (greedy=True for greedy answers)"
        check("generate", "temperature", self.temperature, is_warm or not is_set, allowed)
        check("generate", "greedy", self.greedy, isinstance(self.greedy, bool), "true or false")
        # Greedy decoding has no temperature: one of the two would be ignored.
        is_clear = not (self.greedy and is_set)
        check("generate", "temperature", self.temperature, is_clear, "none beside greedy=True")


@dataclass(frozen=True)
class TrainOptions:
    """Options of training a role.

    Raises:
        FlowError: an invalid number of steps.
    """

    loss: Loss
    from_step: int = 0
    """Number of initial steps that do not train the role."""
    auxiliary: tuple[Loss, ...] = ()
    """Losses on other batches, added to the loss."""

    def __post_init__(self) -> None:
        is_step = is_count(self.from_step, minimum=0)
        check("train", "from_step", self.from_step, is_step, "a step number of at least 0")


@dataclass(frozen=True)
class ComputeOptions:
    """Operations of a compute call.

    Raises:
        FlowError: operations of several protocols.
    """

    operations: tuple[Operation, ...]
    """In the order of execution."""

    def __post_init__(self) -> None:
        # A protocol assigns the rows of a complete call, so all operations must share one.
        used = {_protocol_of(operation): operation for operation in self.operations}
        if len(used) > 1:
            got = ", ".join(
                f"{operation_name(operation)} with {protocol or 'none of its own'}"
                for protocol, operation in used.items()
            )
            raise FlowError(
                f"a compute call has operations of several protocols: got {got}, allowed one for "
                "all operations of a call; make a call of its own for each"
            )

    @property
    def scope(self) -> Scope:
        """The widest scope of its operations."""
        return widest(operation.scope for operation in self.operations)

    @property
    def sees_all(self) -> bool:
        """True if a custom operation needs all rows on every rank."""
        return any(isinstance(o, Custom) and o.scope is Scope.BATCH for o in self.operations)

    @property
    def protocol(self) -> str | None:
        """Entry point of the operations' protocol. None: the default of the call's kind."""
        return next(filter(None, map(_protocol_of, self.operations)), None)


@dataclass(frozen=True)
class CopyOptions:
    """Options of copying weights."""

    source: str
    """Role whose weights are copied."""


@dataclass(frozen=True)
class SaveOptions:
    """Options of saving lines.

    Raises:
        FlowError: a name that no folder may have.
    """

    name: str
    """Name of the folder below `saved/` in the run's folder."""

    def __post_init__(self) -> None:
        check("save", "name", self.name, is_name(self.name), ALLOWED_NAMES)


Options = GenerateOptions | TrainOptions | ComputeOptions | CopyOptions | SaveOptions | None


@dataclass(frozen=True)
class ModelCall:
    """A primitive of a role, with the columns it reads and writes and its options."""

    # Plain data: a call is pickled to workers, and two traces of one step are compared.

    id: str
    """Call site in the step: `actor.generate`, `actor.generate#2`, `every-10/actor.log_probs`."""
    role: str | None
    """None: a call of the flow itself, without a model."""
    method: str
    """Name of the primitive."""
    kind: CallKind
    reads: tuple[str, ...]
    """Columns, sorted."""
    writes: tuple[str, ...]
    """Columns, sorted."""
    carries: tuple[str, ...] = ()
    """Columns that generate copies from its prompts to the new batch, sorted."""
    options: Options = None
    auxiliary_reads: tuple[tuple[str, ...], ...] = ()
    """Columns that it reads of the batch of each auxiliary loss, sorted."""

    def uses(self, role: str) -> bool:
        """True if it reads or changes the weights of a role."""
        # The source of a copy has no call of its own, but its weights are read.
        return self.role == role or self.copied_role == role

    def changes(self, role: str) -> bool:
        """True if it changes the weights of a role."""
        return self.role == role and self.kind in (CallKind.TRAIN, CallKind.COPY)

    @property
    def protocol(self) -> str | None:
        """Entry point of a user's transfer protocol. None: the default of its kind."""
        return self.options.protocol if isinstance(self.options, ComputeOptions) else None

    @property
    def copied_role(self) -> str | None:
        """Role whose weights it copies. None: it copies none."""
        return self.options.source if isinstance(self.options, CopyOptions) else None

    @property
    def compares_responses(self) -> bool:
        """True if it compares the responses to a prompt, so that one rank needs them all."""
        # Losses on pairs train on differences; a scoring model gives equal responses one score.
        options = self.options
        if isinstance(options, TrainOptions):
            return isinstance(options.loss, BradleyTerry | Dpo)
        return self.method in SCORING


def _protocol_of(operation: Operation) -> str | None:
    return operation.protocol if isinstance(operation, Custom) else None


def operation_name(operation: Operation) -> str:
    """Name of an operation for messages."""
    return operation.entrypoint if isinstance(operation, Custom) else type(operation).__name__


class CallSites:
    """Ids of call sites: stable over steps, over rounds of a region, and between trace and run.

    The first call of a kind is `actor.generate`, the second `actor.generate#2`. Inside a region ids
    are prefixed and counted from 1.
    """

    def __init__(self) -> None:
        # Ids of the enclosing regions, with a slash behind each.
        self._prefix = ""
        # Calls so far of each site, in the current region only.
        self._seen: Counter[str] = Counter()

    def number(self, site: str) -> str:
        """Give the next id of a site, such as `actor.generate` or `every-10`."""
        self._seen[site] += 1
        count = self._seen[site]
        return f"{self._prefix}{site}" + (f"#{count}" if count > 1 else "")

    @contextmanager
    def inside(self, region: str) -> Iterator[None]:
        """Enter a region, by its id, for one round."""
        prefix, seen = self._prefix, self._seen
        # Counted anew at every entry, else the second round would have other ids than the trace.
        self._prefix, self._seen = f"{region}/", Counter()
        try:
            yield
        finally:
            self._prefix, self._seen = prefix, seen
