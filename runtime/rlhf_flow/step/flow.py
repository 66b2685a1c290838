"""Flow: the argument of a step function. Trace and run share it; only the backend differs.

    step function -> flow.actor.generate(batch) -> ModelCall -> Backend.run(call, batch) -> batch
                     checks roles, options, columns; gives every call site its id

The backend of a trace records the call, the backend of the runtime sends it to workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from types import MappingProxyType
from typing import Any, TypeVar

from rlhf_api.calls import CallKind
from rlhf_api.spec.stopping import TRAIN_ON_ALL, OnStop
from rlhf_flow.errors import FlowError, UnknownRole
from rlhf_flow.step.backend import Backend
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
from rlhf_flow.step.column_settings import columns_read_by
from rlhf_flow.step.columns import ALLOWED_NAMES, ENOUGH, LINES, is_name
from rlhf_flow.step.missing_column import missing_column_message
from rlhf_flow.step.operations import BothValid, Operation, Scope, WeightedSum
from rlhf_flow.step.reward_terms import RewardTerms
from rlhf_flow.step.roles import Primitive, Roles

T = TypeVar("T")

# Methods of the flow that a step calls.
METHODS = ("compute", "every", "pretraining", "repeat", "save")

# Names that no role may have: those of the flow's attributes, which would hide the role, those of
# families of metrics, and `rollout`, whose column would be `rollout_log_probs`.
RESERVED = frozenset(
    {
        *(*METHODS, "call", "on_stop", "restrict_valid", "role_terms", "roles"),
        *("samples_per_prompt", "step", "sum_terms", "rollout", "truncates_sampling"),
        "has_conversations",
        *("batch", "environment", "evaluation", "groups", "memory", "response", "score"),
        *("throughput", "time"),
    }
)


# The region of a step's first `flow.repeat`.
REPEAT = "repeat"


class Flow:
    """The roles of an algorithm, and their calls.

    Args:
        roles: the kind of every role, by name.
        backend: executes or records calls.
        samples_per_prompt: responses to a prompt unless a call says otherwise.
        rewards: terms of each role's score; verifiers score a role that is not in it.
        on_stop: treatment of responses by the reason for their end.
        truncates_sampling: True if sampling leaves tokens out.
        has_conversations: True if responses may have several turns.

    Raises:
        FlowError: no roles, or a role with the name of a method of the flow.
    """

    def __init__(
        self,
        roles: Roles,
        backend: Backend,
        samples_per_prompt: int = 1,
        rewards: Mapping[str, RewardTerms] = MappingProxyType({}),
        on_stop: OnStop = TRAIN_ON_ALL,
        truncates_sampling: bool = False,
        has_conversations: bool = False,
    ) -> None:
        clashes = sorted(RESERVED & set(roles)) or sorted(r for r in roles if not is_name(r))
        if clashes or not roles:
            raise FlowError(
                f"roles() gives no usable names: got {clashes[0] if clashes else 'no role'}, "
                f"allowed {ALLOWED_NAMES}, except {', '.join(sorted(RESERVED))}; rename or add a "
                "role"
            )
        self.roles: Roles = dict(roles)
        # Of `Caller`: the default of `generate`.
        self.samples_per_prompt = samples_per_prompt
        # Of `Caller`: what `score` and `train` do with responses by the reason for their end.
        self.on_stop = on_stop
        # Of `Caller`: `generate` then records the tokens that sampling kept.
        self.truncates_sampling = truncates_sampling
        # Of `Caller`: `generate` then masks the tokens that were not sampled.
        self.has_conversations = has_conversations
        self._rewards = rewards
        self._backend = backend
        # None outside of a step.
        self._sites: CallSites | None = None

    def __getattr__(self, name: str) -> Any:
        """A role by its name, of the class that roles() names."""
        # Copying and pickling probe for such methods, and expect this error.
        if name.startswith("_"):
            raise AttributeError(name)
        # self.roles would recurse before the constructor sets it.
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
        """One pass of a step function; ids of call sites are counted from 1."""
        if self._sites is not None:
            raise FlowError("flow.step() inside a step: a step is one pass; remove the inner one")
        # New in every step, so that ids are the same as in the trace.
        self._sites = CallSites()
        try:
            yield
        finally:
            self._sites = None

    @checked_call
    def compute(self, batch: BatchValue, *operations: Operation) -> BatchValue:
        """Run operations one after the other, in one call.

        Returns:
            A batch of the columns that they write.
        """
        if not operations or not all(isinstance(item, Operation) for item in operations):
            raise FlowError(
                f"flow.compute needs operations: got {operations!r}, allowed "
                "rlhf_flow.Gae(...), Custom(...) and so on; pass at least one"
            )
        return self._compute("compute", batch, operations)

    @checked_call
    def every(self, n: int, body: Callable[[], None]) -> None:
        """Run the body in steps n, 2n, ...; its batches may not be used outside of it."""
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
        """The step's rows of data.pretraining: prompt_id, prompt_tokens, response_tokens. The
        prompt of a complete text is its first token."""
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
        """Collect rows round by round until an operation finds them enough.

        Args:
            body: builds one round's batch from prompts: the step's in the first round, then equally
                many fresh ones; every round has the same columns.
            until: an operation over the batch, which reads the rows so far and writes the one
                column `enough`, the same in every row.
            max_rounds: limit of rounds; after the last one its rows are used as they are.
            expected_rounds: average number of rounds, for planning.

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
        `saved/<name>/step-000012.jsonl`, in the order of the rows. Calls of a step with the same
        name append to one file. Steps do not wait for it.

        Args:
            batch: with the column `lines`, a text for each row; rows without a text have no line.
            name: of the folder.

        Raises:
            FlowError: no name for a folder.
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
            # An operation on fewer rows could answer differently on each rank, which would then run
            # different rounds.
            raise FlowError(
                f"flow.repeat cannot decide when to end: got until={until!r}, allowed an "
                f"operation over all rows that writes only the column {ENOUGH}; use EnoughGroups "
                f'or Custom("module:function", reads=[...], writes=["{ENOUGH}"], scope=Scope.BATCH)'
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
            # The batch needs no column that an earlier operation of the call writes.
            reads |= columns_read_by(operation, writes | _columns_of(batch)) - writes
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
        reads: Sequence[str] = (),
    ) -> BatchValue:
        """Check and make a call of a role. Steps use the methods of roles instead.

        Args:
            writes: columns that it writes in addition to those of its primitive.
            reads: columns that it reads in addition to those of its primitive and losses.

        Raises:
            FlowError: a column that nothing has written, or a call outside of a step.
        """
        # The first loss reads from the batch, each auxiliary one from its own batch.
        losses = (options.loss, *options.auxiliary) if isinstance(options, TrainOptions) else ()
        available = map(_columns_of, (batch, *auxiliary)) if losses else ()
        own, *others = list(map(columns_read_by, losses, available)) or [set()]
        optional = _columns_of(batch).intersection(primitive.optional)
        all_reads = tuple(sorted({*primitive.reads, *optional, *own, *reads}))
        return self._send(
            ModelCall(
                id=self._open_sites().number(f"{role}.{primitive.method}"),
                role=role,
                method=primitive.method,
                kind=primitive.kind,
                reads=all_reads,
                writes=tuple(sorted((*primitive.columns_written(role), *writes))),
                # Generated rows are new: only a copy brings a prompt's columns to its responses.
                carries=all_reads if primitive.kind is CallKind.GENERATE else (),
                options=options,
                auxiliary_reads=tuple(tuple(sorted(names)) for names in others),
            ),
            self._backend.no_rows() if primitive.kind is CallKind.COPY else batch,
            auxiliary,
        )

    def role_terms(self, role: str) -> RewardTerms:
        """The terms of a role's score."""
        return self._rewards.get(role, RewardTerms())

    def sum_terms(self, role: str, batch: BatchValue, operation: WeightedSum) -> BatchValue:
        """Sum the terms of a role's score."""
        # Named after the role, as its metrics are.
        return self._compute(f"{role}.sum", batch, (operation,))

    def restrict_valid(self, role: str, batch: BatchValue, operation: BothValid) -> BatchValue:
        """Restrict the rows whose scores by a role count."""
        return self._compute(f"{role}.valid", batch, (operation,))

    def _send(
        self, call: ModelCall, batch: BatchValue | None, auxiliary: Sequence[BatchValue] = ()
    ) -> BatchValue:
        reads = (call.reads, *call.auxiliary_reads)
        for source, names in zip((batch, *auxiliary), reads, strict=True):
            self._check_columns(call, source, names)
        return self._backend.run(call, batch, auxiliary)

    def _check_columns(self, call: ModelCall, batch: object, names: Sequence[str]) -> None:
        available = getattr(batch, "column_names", None)
        if not isinstance(available, frozenset):
            raise FlowError(
                f"{call.id} takes a batch: got {batch!r}, allowed the prompts or what another call "
                "returned; pass one"
            )
        for name in names:
            if name not in available:
                raise FlowError(missing_column_message(call, name, available, self.roles))


def _columns_of(batch: object) -> frozenset[str]:
    # Anything else than a batch is refused later, when the call is sent.
    columns = getattr(batch, "column_names", None)
    return columns if isinstance(columns, frozenset) else frozenset()


def _check_takes_prompts(body: object) -> None:
    """Refuse a body of `repeat` that is no function of one batch."""
    # Checked here: a TypeError of the call could also come from inside the body.
    try:
        parameters = signature(body) if callable(body) else None
        if parameters is not None:
            parameters.bind(None)
            return
        got = repr(body)
    except TypeError:
        got = f"{getattr(body, '__name__', body)}{parameters}"
    raise FlowError(
        f"flow.repeat runs a function for every round: got {got}, allowed one that takes the "
        "round's prompts and returns a batch; write def sample(fresh): ... return batch"
    )
