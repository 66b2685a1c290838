"""Checks during the trace that the columns of a call have the kinds and roles that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_flow.errors import FlowError
from rlhf_flow.step.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.step.column_settings import ColumnInput, ColumnSettings, column_inputs, fixed_input
from rlhf_flow.step.columns import RESPONSE_TOKENS, Kind, column_spec
from rlhf_flow.step.missing_column import column_sources
from rlhf_flow.step.operations import Operation
from rlhf_flow.step.roles import Roles
from rlhf_flow.trace.symbolic import Origin


@dataclass(frozen=True)
class ColumnCheck:
    """Checks columns by their origins."""

    roles: Roles
    """Roles of the algorithm."""
    call_roles: Mapping[str, str | None]
    """Role of every earlier call, by the id of the call."""

    def check_call(
        self,
        call: ModelCall,
        origins: Mapping[str, Origin],
        auxiliary: Sequence[Mapping[str, Origin]] = (),
    ) -> dict[str, Origin]:
        """Check the columns that a call reads.

        Args:
            call: to be recorded.
            origins: of the columns of its batch.
            auxiliary: origins of the batches of its auxiliary losses.

        Returns:
            Origins of the columns of its result.

        Raises:
            FlowError: a column of another kind or of another role.
        """
        if isinstance(call.options, ComputeOptions):
            return self._check_operations(call, call.options.operations, origins)
        if isinstance(call.options, TrainOptions):
            losses = (call.options.loss, *call.options.auxiliary)
            for loss, sources in zip(losses, (origins, *auxiliary), strict=True):
                self._check(call, loss, column_inputs(loss, sources), sources)
            return {}
        self._check(call, None, map(fixed_input, call.reads), origins)
        return _written(call, origins)

    def _check_operations(
        self, call: ModelCall, operations: Iterable[Operation], origins: Mapping[str, Origin]
    ) -> dict[str, Origin]:
        # An operation may read the columns of those before it in the same call.
        current = dict(origins)
        for operation in operations:
            self._check(call, operation, column_inputs(operation, current), current)
            for output in operation.outputs():
                # Whitened returns, say, are still returns.
                kind = current[output.column].kind if output.keeps_kind else output.kind
                current[output.column] = Origin.single(call.id, output.column, kind)
        return {column: current[column] for column in call.writes}

    def _check(
        self,
        call: ModelCall,
        reader: Operation | ColumnSettings | None,
        inputs: Iterable[ColumnInput],
        origins: Mapping[str, Origin],
    ) -> None:
        for read in inputs:
            origin = origins[read.column]
            # A custom operation may read and write columns of unknown kind.
            if read.reads is None or origin.kind is None:
                continue
            got = read.column
            if reader is not None and read.setting is not None:
                got = f"{type(reader).__name__}({read.setting}={read.column!r})"
            if origin.kind not in read.reads.kinds:
                raise FlowError(self._wrong_kind(call, got, read, origins))
            if read.reads.own and not self._is_own(call, origin, origins):
                raise FlowError(self._wrong_role(call, got, read, origins))

    def _is_own(self, call: ModelCall, origin: Origin, origins: Mapping[str, Origin]) -> bool:
        """True for a column of the role that a call trains, or of the role that sampled."""
        # Without sampled responses no role can be wrong.
        responses = origins.get(RESPONSE_TOKENS)
        if responses is None or not responses.is_generated:
            return True
        # None: data, or an operation, whose result may combine columns of several roles.
        own = {None, call.role, *self._writers(responses)}
        return self._writers(origin) <= own

    def _writers(self, origin: Origin) -> set[str | None]:
        """The roles whose calls wrote a column; None for data and for calls without a role."""
        return {self.call_roles.get(version.call) for version in origin.versions}

    def _wrong_kind(
        self, call: ModelCall, got: str, read: ColumnInput, origins: Mapping[str, Origin]
    ) -> str:
        assert read.reads is not None
        kinds, origin = read.reads.kinds, origins[read.column]
        assert origin.kind is not None
        allowed = sorted(name for name, other in origins.items() if other.kind in kinds)
        # Of columns to join, if the batch has none that fits.
        sources = column_sources(lambda _, kind: kind in kinds, self.roles)
        advice = (
            f"name one of the batch: {', '.join(allowed)}"
            if allowed
            else f"the batch has none: join the result of {' or '.join(sources) or 'an operation'}"
        )
        return (
            f"{call.id} takes a column for what it is not: got {got}, which is "
            f"{origin.kind.value} from {origin.calls}, allowed "
            f"{' or '.join(kind.value for kind in Kind if kind in kinds)}; {advice}"
        )

    def _wrong_role(
        self, call: ModelCall, got: str, read: ColumnInput, origins: Mapping[str, Origin]
    ) -> str:
        assert read.reads is not None
        allowed = sorted(
            name
            for name, origin in origins.items()
            if origin.kind in read.reads.kinds and self._is_own(call, origin, origins)
        )
        advice = f"name {' or '.join(allowed)}" if allowed else "join it before"
        return (
            f"{call.id} compares with another role's column: got {got}, which is from "
            f"{origins[read.column].calls}, allowed one of {call.role}, or of the role that "
            f"sampled; {advice}"
        )


def _written(call: ModelCall, origins: Mapping[str, Origin]) -> dict[str, Origin]:
    """Origins of the columns that a primitive writes or carries."""
    is_generated = call.kind is CallKind.GENERATE
    result = {name: Origin.single(call.id, name, origins[name].kind) for name in call.carries}
    for name in call.writes:
        spec = column_spec(name)
        result[name] = Origin.single(call.id, name, spec.kind if spec else None, is_generated)
    return result
