"""Whether fields hold what a call takes them for: checked at the trace, where origins are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_flow.errors import FlowError
from rlhf_flow.step.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.step.columns import (
    RESPONSE_TOKENS,
    ColumnSettings,
    Input,
    Kind,
    field_of,
    fixed_input,
    inputs_of,
)
from rlhf_flow.step.missing_column import sources_of
from rlhf_flow.step.operations import Operation
from rlhf_flow.step.roles import Roles
from rlhf_flow.trace.symbolic import Origin


@dataclass(frozen=True)
class FieldCheck:
    """What a call's fields are held against."""

    roles: Roles
    """Of the algorithm."""
    makers: Mapping[str, str | None]
    """Of every call before it whose it is."""

    def check_call(
        self,
        call: ModelCall,
        origins: Mapping[str, Origin],
        auxiliary: Sequence[Mapping[str, Origin]] = (),
    ) -> dict[str, Origin]:
        """Check the fields that a call reads.

        Args:
            call: to be recorded.
            origins: of the fields of its batch.
            auxiliary: those of the batches of its auxiliary losses.

        Returns:
            Origins of the fields of its result.

        Raises:
            FlowError: a field of another kind, or of another role, than the call takes.
        """
        if isinstance(call.options, ComputeOptions):
            return self._check_operations(call, call.options.operations, origins)
        if isinstance(call.options, TrainOptions):
            losses = (call.options.loss, *call.options.auxiliary)
            for loss, given in zip(losses, (origins, *auxiliary), strict=True):
                self._check(call, loss, inputs_of(loss, given), given)
            return {}
        self._check(call, None, map(fixed_input, call.reads), origins)
        return _written(call, origins)

    def _check_operations(
        self, call: ModelCall, operations: Iterable[Operation], origins: Mapping[str, Origin]
    ) -> dict[str, Origin]:
        known = dict(origins)
        for operation in operations:
            self._check(call, operation, inputs_of(operation, known), known)
            for output in operation.outputs():
                kind = known[output.column].kind if output.keeps_kind else output.kind
                known[output.column] = Origin.of(call.id, output.column, kind)
        return {field: known[field] for field in call.writes}

    def _check(
        self,
        call: ModelCall,
        reader: Operation | ColumnSettings | None,
        inputs: Iterable[Input],
        origins: Mapping[str, Origin],
    ) -> None:
        for each in inputs:
            origin = origins[each.column]
            if each.reads is None or origin.kind is None:
                continue
            got = each.column
            if reader is not None and each.setting is not None:
                got = f"{type(reader).__name__}({each.setting}={each.column!r})"
            if origin.kind not in each.reads.kinds:
                raise FlowError(self._other_kind(call, got, each, origins))
            if each.reads.own and not self._is_own(call, origin, origins):
                raise FlowError(self._other_role(call, got, each, origins))

    def _is_own(self, call: ModelCall, origin: Origin, origins: Mapping[str, Origin]) -> bool:
        """Whether a field is of the role that a call trains, or of the one that sampled; also where
        nobody can tell."""
        responses = origins.get(RESPONSE_TOKENS)
        if responses is None or not responses.is_generated:
            return True
        own = {None, call.role, *self._makers(responses)}
        return self._makers(origin) <= own

    def _makers(self, origin: Origin) -> set[str | None]:
        """The roles whose calls wrote a field; None: nobody's did."""
        return {self.makers.get(place.call) for place in origin.places}

    def _other_kind(
        self, call: ModelCall, got: str, read: Input, origins: Mapping[str, Origin]
    ) -> str:
        assert read.reads is not None
        kinds, origin = read.reads.kinds, origins[read.column]
        assert origin.kind is not None
        allowed = sorted(name for name, each in origins.items() if each.kind in kinds)
        sources = sources_of(lambda _, kind: kind in kinds, self.roles)
        advice = (
            f"name one of the batch: {', '.join(allowed)}"
            if allowed
            else f"the batch has none: join the result of {' or '.join(sources) or 'an operation'}"
        )
        return (
            f"{call.id} takes a field for what it is not: got {got}, which is "
            f"{origin.kind.value} from {origin.calls}, allowed "
            f"{' or '.join(kind.value for kind in Kind if kind in kinds)}; {advice}"
        )

    def _other_role(
        self, call: ModelCall, got: str, read: Input, origins: Mapping[str, Origin]
    ) -> str:
        assert read.reads is not None
        allowed = sorted(
            name
            for name, each in origins.items()
            if each.kind in read.reads.kinds and self._is_own(call, each, origins)
        )
        advice = f"name {' or '.join(allowed)}" if allowed else "join it before"
        return (
            f"{call.id} compares with another role's field: got {got}, which is from "
            f"{origins[read.column].calls}, allowed one of {call.role}, or of the role that "
            f"sampled; {advice}"
        )


def _written(call: ModelCall, origins: Mapping[str, Origin]) -> dict[str, Origin]:
    """Origins of what a primitive writes, and carries on."""
    is_generated = call.kind is CallKind.GENERATE
    result = {name: Origin.of(call.id, name, origins[name].kind) for name in call.carries}
    for name in call.writes:
        found = field_of(name)
        result[name] = Origin.of(call.id, name, found.kind if found else None, is_generated)
    return result
