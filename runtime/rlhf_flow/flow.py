"""Flow: what a step function sees. One class for tracing and for running; backends differ.

    step function -> flow.actor.generate(batch) -> ModelCall -> Backend.run(call, batch) -> batch
                     checks roles, options, fields; gives every call site its id

The backend of a trace records the call; the runtime's sends it to workers. A step sees no other
difference, so what was checked in the trace is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from rlhf_api.plan import CallKind, RoleKind
from rlhf_flow.calls import ModelCall
from rlhf_flow.errors import FlowError, UnknownPrimitive, UnknownRole
from rlhf_flow.fields import ALLOWED_NAMES, is_name
from rlhf_flow.missing import missing_field_message
from rlhf_flow.operations import Operation
from rlhf_flow.primitives import PRIMITIVES, Primitive, fill_options, loss_option
from rlhf_flow.sites import CallSites

T = TypeVar("T")

RESERVED = frozenset({"compute", "every", "repeat", "roles", "step"})
"""Names of the flow itself, which no role may have."""


class BatchValue(Protocol):
    """Columns over the same rows: symbolic while tracing, references while running."""

    @property
    def fields(self) -> frozenset[str]:
        """Names of the columns."""

    def __or__(self, other: Any, /) -> BatchValue:
        """Both's columns; where both have one, the other's. The rows must be the same."""


class Backend(Protocol):
    """What happens when a step calls something.

    A backend is given the batches that it made itself, hence their type is its own.
    """

    def run(self, call: ModelCall, batch: Any) -> BatchValue:
        """Run a call; return a batch of only the fields it writes (and carries, if it starts
        rows)."""

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        """Run the body on steps whose number is a multiple of n."""

    def repeat(
        self,
        region: str,
        body: Callable[[], Any],
        until: Callable[[Any], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> BatchValue:
        """Collect the body's rows round by round, until `until` of all of them says enough.

        `until` runs a compute call on the rows so far and returns a batch with the one field
        `enough`, a single true or false.
        """


ENOUGH = "enough"
"""The field by which the condition of `flow.repeat` answers."""


class RoleHandle:
    """A role as a step sees it: its primitives are methods that take and return batches."""

    def __init__(self, flow: Flow, name: str, kind: RoleKind) -> None:
        self._flow = flow
        self._name = name
        self._kind = kind

    def __getattr__(self, method: str) -> Callable[..., BatchValue]:
        if method.startswith("_"):
            raise AttributeError(method)
        table = PRIMITIVES[self._kind]
        if method not in table:
            raise UnknownPrimitive(
                f"{self._name} has no primitive {method}: a role of kind {self._kind.value} has "
                f"{', '.join(sorted(table))}; call one of these or give the role another kind"
            )
        primitive = table[method]

        def call(batch: BatchValue, *losses: object, **options: object) -> BatchValue:
            return self._flow._call(self._name, primitive, batch, losses, options)

        call.__name__ = method
        return call

    def __repr__(self) -> str:
        return f"<{self._kind.value} {self._name}>"


class Flow:
    """The roles of an algorithm and the ways to call them.

    Args:
        roles: kind of every role by name.
        backend: what a call does.

    Raises:
        FlowError: no roles, or a role with the name of a method of the flow.
    """

    def __init__(self, roles: Mapping[str, RoleKind], backend: Backend) -> None:
        clashes = sorted(RESERVED & set(roles)) or sorted(r for r in roles if not is_name(r))
        if clashes or not roles:
            raise FlowError(
                f"roles() gives no usable names: got {clashes[0] if clashes else 'no role'}, "
                f"allowed {ALLOWED_NAMES}, except {', '.join(sorted(RESERVED))}; rename or add a "
                "role"
            )
        self.roles: Mapping[str, RoleKind] = dict(roles)
        self._backend = backend
        self._sites: CallSites | None = None

    def __getattr__(self, name: str) -> RoleHandle:
        if name.startswith("_"):
            raise AttributeError(name)
        roles: Mapping[str, RoleKind] = self.__dict__["roles"]
        if name not in roles:
            raise UnknownRole(
                f"the algorithm has no role {name}: got flow.{name}, allowed "
                f"{', '.join(sorted(roles))}; add it to roles() or correct the name"
            )
        return RoleHandle(self, name, roles[name])

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

    def compute(self, batch: BatchValue, *operations: Operation) -> BatchValue:
        """Run operations one after the other, in one call, on the ranks of the first policy.

        Returns:
            A batch of the fields that they write.
        """
        if not operations or not all(isinstance(item, Operation) for item in operations):
            raise FlowError(
                f"flow.compute needs operations: got {operations!r}, allowed "
                "rlhf_flow.operations.gae(...), custom(...) and so on; pass at least one"
            )
        return self._compute("compute", batch, operations)

    def every(self, n: int, body: Callable[[], None]) -> None:
        """Run the body on steps n, 2n, ...; nothing made in it may be used outside it."""
        if not _is_count(n):
            raise FlowError(
                f"flow.every needs a number of steps: got {n!r}, allowed whole numbers of at least "
                "1; take it from the algorithm's settings"
            )
        region = self._open_sites().number(f"every-{n}")
        self._backend.every(region, n, lambda: self._inside(region, body))

    def repeat(
        self,
        body: Callable[[], BatchValue],
        *,
        until: Operation,
        max_rounds: int,
        expected_rounds: float,
    ) -> BatchValue:
        """Collect rows round by round until an operation says that they suffice.

        Args:
            body: makes one round's batch; every round has the same fields.
            until: an operation that reads the rows so far and writes the one field `enough`.
            max_rounds: rounds at most.
            expected_rounds: rounds on average, for planning.

        Returns:
            The rows of all rounds.
        """
        self._check_repeat(until, max_rounds, expected_rounds)
        region = self._open_sites().number("repeat")

        def condition(batch: BatchValue) -> BatchValue:
            # A scope of its own keeps the condition's id equal in all rounds.
            return self._inside(
                f"{region}/until", lambda: self._compute("compute", batch, (until,))
            )

        return self._backend.repeat(
            region, lambda: self._inside(region, body), condition, max_rounds, expected_rounds
        )

    def _check_repeat(self, until: object, max_rounds: int, expected_rounds: float) -> None:
        if not isinstance(until, Operation) or until.writes != (ENOUGH,):
            raise FlowError(
                f"flow.repeat cannot decide when to end: got until={until!r}, allowed an operation "
                f"that writes only the field {ENOUGH}; use rlhf_flow.operations.custom(...)"
            )
        if not _is_count(max_rounds) or not 1 <= expected_rounds <= max_rounds:
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
        self, method: str, batch: BatchValue, operations: tuple[Operation, ...]
    ) -> BatchValue:
        role = next((r for r, kind in self.roles.items() if kind is RoleKind.POLICY), None)
        if role is None:
            raise FlowError(
                "flow.compute runs on the ranks of a policy: got "
                f"{', '.join(sorted(self.roles))}, allowed with a role of kind policy; add one"
            )
        reads: set[str] = set()
        writes: set[str] = set()
        for operation in operations:
            reads |= set(operation.reads) - writes
            writes |= set(operation.writes)
        return self._send(
            ModelCall(
                id=self._open_sites().number(f"{role}.{method}"),
                role=role,
                method=method,
                kind=CallKind.COMPUTE,
                reads=tuple(sorted(reads)),
                writes=tuple(sorted(writes)),
                options={"operations": operations},
            ),
            batch,
        )

    def _call(
        self,
        role: str,
        primitive: Primitive,
        batch: BatchValue,
        losses: Sequence[object],
        given: Mapping[str, object],
    ) -> BatchValue:
        site = f"{role}.{primitive.method}"
        options = fill_options(site, primitive, given) | loss_option(site, primitive, losses)
        reads = tuple(sorted(primitive.reads(role, options)))
        return self._send(
            ModelCall(
                id=self._open_sites().number(site),
                role=role,
                method=primitive.method,
                kind=primitive.kind,
                reads=reads,
                writes=tuple(sorted(primitive.writes(role, options))),
                carries=reads if primitive.kind is CallKind.GENERATE else (),
                options=options,
            ),
            batch,
        )

    def _send(self, call: ModelCall, batch: BatchValue) -> BatchValue:
        available = getattr(batch, "fields", None)
        if not isinstance(available, frozenset):
            raise FlowError(
                f"{call.id} takes a batch: got {batch!r}, allowed the prompts or what another call "
                "returned; pass one"
            )
        for field in call.reads:
            if field not in available:
                raise FlowError(missing_field_message(call, field, available, self.roles))
        return self._backend.run(call, batch)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
