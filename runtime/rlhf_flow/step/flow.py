"""Flow: what a step function sees. One class for tracing and for running; backends differ.

    step function -> flow.actor.generate(batch) -> ModelCall -> Backend.run(call, batch) -> batch
                     checks roles, options, fields; gives every call site its id

The backend of a trace records the call; the runtime's sends it to workers. A step sees no other
difference, so what was checked in the trace is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from rlhf_api.calls import CallKind
from rlhf_flow.errors import FlowError, UnknownRole
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import (
    CallSites,
    ComputeOptions,
    ModelCall,
    Options,
    SaveOptions,
    TrainOptions,
)
from rlhf_flow.step.checks import checked_call, is_count, suggest
from rlhf_flow.step.columns import ALLOWED_NAMES, ENOUGH, LINES, is_name, reads_of
from rlhf_flow.step.missing_column import missing_field_message
from rlhf_flow.step.operations import Operation, Scope, WeightedSum
from rlhf_flow.step.reward_terms import RewardTerms
from rlhf_flow.step.roles import Primitive, Roles

T = TypeVar("T")

METHODS = ("compute", "every", "pretraining", "repeat", "save")
"""What a step calls of the flow itself."""

RESERVED = frozenset(
    {
        *(*METHODS, "call", "roles", "samples_per_prompt", "step"),
        *("batch", "evaluation", "groups", "memory", "response", "score", "throughput", "time"),
        "rollout",
    }
)
"""Names that no role may have: those of the flow itself, of families of metrics, and that after
which a field of the generation engine is named."""


class Backend(Protocol):
    """What happens when a step calls something.

    A backend is given the batches that it made itself, hence their type is its own.
    """

    def run(self, call: ModelCall, batch: Any, auxiliary: Sequence[Any] = ()) -> BatchValue:
        """Run a call; return a batch of only the fields it writes (and carries, if it starts
        rows)."""

    def no_rows(self) -> BatchValue:
        """A batch of no rows and no fields, for a call that reads none."""

    def pretraining(self) -> BatchValue:
        """The step's rows of data.pretraining."""

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        """Run the body on steps whose number is a multiple of n."""

    def repeat(
        self,
        region: str,
        body: Callable[[Any], Any],
        until: Callable[[Any], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> BatchValue:
        """Collect the body's rows round by round, until `until` of all of them says enough.

        The body is given the round's prompts. `until` runs a compute call on the rows so far and
        returns a batch with the one field `enough`, the same in every row.
        """


REPEAT = "repeat"
"""The region of a step's first `flow.repeat`."""


class Flow:
    """The roles of an algorithm and the ways to call them.

    Args:
        roles: what every role is, by name.
        backend: what a call does.
        samples_per_prompt: responses to a prompt where a call does not say it.
        rewards: what the score of each role is the sum of; where a role is left out, verifiers
            compute it.

    Raises:
        FlowError: no roles, or a role with the name of a method of the flow.
    """

    def __init__(
        self,
        roles: Roles,
        backend: Backend,
        samples_per_prompt: int = 1,
        rewards: Mapping[str, RewardTerms] = MappingProxyType({}),
    ) -> None:
        clashes = sorted(RESERVED & set(roles)) or sorted(r for r in roles if not is_name(r))
        if clashes or not roles:
            raise FlowError(
                f"roles() gives no usable names: got {clashes[0] if clashes else 'no role'}, "
                f"allowed {ALLOWED_NAMES}, except {', '.join(sorted(RESERVED))}; rename or add a "
                "role"
            )
        self.roles: Roles = dict(roles)
        self.samples_per_prompt = samples_per_prompt
        self._rewards = rewards
        self._backend = backend
        self._sites: CallSites | None = None

    def __getattr__(self, name: str) -> Any:
        """A role, by its name: the class of its entry in roles()."""
        if name.startswith("_"):
            raise AttributeError(name)
        roles: Roles = self.__dict__["roles"]
        if name not in roles:
            advice = suggest(name, {*roles, *METHODS}, "add it to roles()")
            raise UnknownRole(
                f"the algorithm has no role {name}: got flow.{name}, allowed "
                f"{', '.join(sorted(roles))}; {advice}"
            )
        return roles[name](name, self)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One pass of a step function; the numbers of call sites begin anew."""
        if self._sites is not None:
            raise FlowError("flow.step() inside a step: a step is one pass; remove the inner one")
        self._sites = CallSites()
        try:
            yield
        finally:
            self._sites = None

    @checked_call
    def compute(self, batch: BatchValue, *operations: Operation) -> BatchValue:
        """Run operations one after the other, in one call.

        Returns:
            A batch of the fields that they write.
        """
        if not operations or not all(isinstance(item, Operation) for item in operations):
            raise FlowError(
                f"flow.compute needs operations: got {operations!r}, allowed "
                "rlhf_flow.Gae(...), Custom(...) and so on; pass at least one"
            )
        return self._compute("compute", batch, operations)

    @checked_call
    def every(self, n: int, body: Callable[[], None]) -> None:
        """Run the body on steps n, 2n, ...; nothing made in it may be used outside it."""
        if not is_count(n):
            raise FlowError(
                f"flow.every needs a number of steps: got {n!r}, allowed whole numbers of at least "
                "1; take it from the algorithm's settings"
            )
        if not callable(body):
            raise FlowError(
                f"flow.every runs a function on some steps: got {body!r}, allowed a function "
                "without arguments; write `flow.every(n, lambda: ...)` or pass a function of yours"
            )
        region = self._open_sites().number(f"every-{n}")
        self._backend.every(region, n, lambda: self._inside(region, body))

    @checked_call
    def pretraining(self) -> BatchValue:
        """The step's rows of data.pretraining: prompt_id, prompt_tokens, response_tokens. Of a
        whole text the first token is the prompt."""
        self._open_sites()
        return self._backend.pretraining()

    @checked_call
    def repeat(
        self,
        body: Callable[[BatchValue], BatchValue],
        *,
        until: Operation,
        max_rounds: int,
        expected_rounds: float,
    ) -> BatchValue:
        """Collect rows round by round until an operation says that they suffice.

        Args:
            body: makes one round's batch from prompts: the step's in the first round, then fresh
                ones, as many again; every round has the same fields.
            until: an operation over the whole batch, which reads the rows so far and writes the
                one field `enough`, the same in every row.
            max_rounds: rounds at most; the last one's rows are taken as they are.
            expected_rounds: rounds on average, for planning.

        Returns:
            The rows of all rounds.
        """
        _check_takes_prompts(body)
        self._check_repeat(until, max_rounds, expected_rounds)
        region = self._open_sites().number(REPEAT)

        def condition(batch: BatchValue) -> BatchValue:
            # A scope of its own keeps the condition's id equal in all rounds.
            return self._inside(
                f"{region}/until", lambda: self._compute("compute", batch, (until,))
            )

        return self._backend.repeat(
            region,
            lambda prompts: self._inside(region, lambda: body(prompts)),
            condition,
            max_rounds,
            expected_rounds,
        )

    @checked_call
    def save(self, batch: BatchValue, name: str) -> None:
        """Write the batch's `lines` to a file of this step in the run's folder:
        `saved/<name>/step-000012.jsonl`, in the order of the rows. What a step saves under one name
        goes to one file, call after call. Steps do not wait for it.

        Args:
            batch: with the field `lines`, a text for each row; rows without a text have no line.
            name: of the folder.

        Raises:
            FlowError: a name that no folder may have.
        """
        self._send(
            ModelCall(
                id=self._open_sites().number("save"),
                role=None,
                method="save",
                kind=CallKind.SAVE,
                reads=(LINES,),
                writes=(),
                options=SaveOptions(name),
            ),
            batch,
        )

    def _check_repeat(self, until: object, max_rounds: int, expected_rounds: float) -> None:
        condition = until if isinstance(until, Operation) else None
        sees_all = condition is not None and condition.scope is Scope.BATCH
        if condition is None or not sees_all or tuple(condition.writes) != (ENOUGH,):
            raise FlowError(
                f"flow.repeat cannot decide when to end: got until={until!r}, allowed an "
                f"operation over all rows that writes only the field {ENOUGH}; use EnoughGroups or "
                f'Custom("module:function", reads=[...], writes=["{ENOUGH}"], scope=Scope.BATCH)'
            )
        if not is_count(max_rounds) or not 1 <= expected_rounds <= max_rounds:
            raise FlowError(
                f"flow.repeat without a sensible bound: got max_rounds={max_rounds!r} and "
                f"expected_rounds={expected_rounds!r}, allowed 1 <= expected_rounds <= max_rounds; "
                "correct them"
            )

    def _open_sites(self) -> CallSites:
        if self._sites is None:
            raise FlowError("a call outside a step: wrap it in `with flow.step():`")
        return self._sites

    def _inside(self, region: str, body: Callable[[], T]) -> T:
        with self._open_sites().inside(region):
            return body()

    def _compute(
        self, site: str, batch: BatchValue, operations: tuple[Operation, ...]
    ) -> BatchValue:
        reads: set[str] = set()
        writes: set[str] = set()
        for operation in operations:
            reads |= reads_of(operation, writes | _fields_of(batch)) - writes
            writes |= set(operation.writes)
        return self._send(
            ModelCall(
                id=self._open_sites().number(site),
                role=None,
                method="compute",
                kind=CallKind.COMPUTE,
                reads=tuple(sorted(reads)),
                writes=tuple(sorted(writes)),
                options=ComputeOptions(operations),
            ),
            batch,
        )

    def call(
        self,
        role: str,
        primitive: Primitive,
        batch: BatchValue | None,
        options: Options = None,
        auxiliary: Sequence[BatchValue] = (),
        writes: Sequence[str] = (),
    ) -> BatchValue:
        """A call of a role, checked and made; roles' methods are what a step uses.

        Args:
            writes: fields that it makes beside those of its primitive.

        Raises:
            FlowError: a field that nothing has written, or a call outside of a step.
        """
        losses = (options.loss, *options.auxiliary) if isinstance(options, TrainOptions) else ()
        given = map(_fields_of, (batch, *auxiliary)) if losses else ()
        own, *others = [reads_of(*each) for each in zip(losses, given, strict=True)] or [set()]
        reads = tuple(sorted({*primitive.reads, *own}))
        return self._send(
            ModelCall(
                id=self._open_sites().number(f"{role}.{primitive.method}"),
                role=role,
                method=primitive.method,
                kind=primitive.kind,
                reads=reads,
                writes=tuple(sorted((*primitive.fields_of(role), *writes))),
                carries=reads if primitive.kind is CallKind.GENERATE else (),
                options=options,
                auxiliary_reads=tuple(tuple(sorted(each)) for each in others),
            ),
            self._backend.no_rows() if primitive.kind is CallKind.COPY else batch,
            auxiliary,
        )

    def terms_of(self, role: str) -> RewardTerms:
        """What a role's score is the sum of."""
        return self._rewards.get(role, RewardTerms())

    def add_up(self, role: str, batch: BatchValue, operation: WeightedSum) -> BatchValue:
        """The sum of the terms of a role's score: a call that is named after the role, as its
        metrics are."""
        return self._compute(f"{role}.sum", batch, (operation,))

    def _send(
        self, call: ModelCall, batch: BatchValue | None, auxiliary: Sequence[BatchValue] = ()
    ) -> BatchValue:
        reads = (call.reads, *call.auxiliary_reads)
        for given, fields in zip((batch, *auxiliary), reads, strict=True):
            self._check_fields(call, given, fields)
        return self._backend.run(call, batch, auxiliary)

    def _check_fields(self, call: ModelCall, batch: object, fields: Sequence[str]) -> None:
        available = getattr(batch, "fields", None)
        if not isinstance(available, frozenset):
            raise FlowError(
                f"{call.id} takes a batch: got {batch!r}, allowed the prompts or what another call "
                "returned; pass one"
            )
        for field in fields:
            if field not in available:
                raise FlowError(missing_field_message(call, field, available, self.roles))


def _fields_of(batch: object) -> frozenset[str]:
    """Those of a batch; of anything else, which is refused when the call is made, none."""
    fields = getattr(batch, "fields", None)
    return fields if isinstance(fields, frozenset) else frozenset()


def _check_takes_prompts(body: object) -> None:
    """Refuse what cannot make a round's batch.

    Raises:
        FlowError: it is no function of one batch.
    """
    try:
        takes = signature(body) if callable(body) else None
        if takes is not None:
            takes.bind(None)
            return
        got = repr(body)
    except TypeError:
        got = f"{getattr(body, '__name__', body)}{takes}"
    raise FlowError(
        f"flow.repeat runs a function for every round: got {got}, allowed one that takes the "
        "round's prompts and returns a batch; write def sample(fresh): ... return batch"
    )
