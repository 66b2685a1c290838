"""Tracing: run a step with symbolic batches and record its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphInputs
from rlhf_api.spec.stopping import TRAIN_ON_ALL, OnStop
from rlhf_flow.errors import FlowError, InvalidAlgorithm
from rlhf_flow.step.algorithm import Algorithm, checked_roles, reward_models
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import (
    ComputeOptions,
    GenerateOptions,
    ModelCall,
    operation_name,
)
from rlhf_flow.step.columns import (
    COLUMNS,
    PREFERENCE,
    PRETRAINING_COLUMNS,
    PROMPT_COLUMNS,
    RESPONSE_TOKENS,
)
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.operations import Custom, Operation
from rlhf_flow.step.reward_terms import RewardTerms
from rlhf_flow.step.roles import Roles
from rlhf_flow.trace.entrypoints import check_function, check_protocol, require_plain_step
from rlhf_flow.trace.graph import (
    PRETRAINING,
    PROMPTS,
    DataEdge,
    Graph,
    Region,
    RowCount,
    columns_read,
    version_edges,
)
from rlhf_flow.trace.kinds import ColumnCheck
from rlhf_flow.trace.sampling_checks import check_kept_tokens, check_response_mask, check_sampling
from rlhf_flow.trace.source_location import (
    calling_location,
    errors_located,
    errors_located_at,
    prefix_definition,
    prefix_location,
)
from rlhf_flow.trace.symbolic import ColumnVersion, Origin, Rows, SymbolicBatch


class TracingBackend:
    """Records calls instead of running them.

    Args:
        roles: of the algorithm.
        prompts: of the step.
        pretraining: the step's rows of data.pretraining. None: the job has none.
    """

    def __init__(
        self, roles: Roles, prompts: SymbolicBatch, pretraining: SymbolicBatch | None = None
    ) -> None:
        self._roles = roles
        self._prompts = prompts
        self._pretraining = pretraining
        self.calls: list[ModelCall] = []
        self.data_edges: list[DataEdge] = []
        self.regions: list[Region] = []
        # By the id of each call: as in `Graph`.
        self.rows: dict[str, RowCount] = {}
        self.responses: dict[str, tuple[str, ...]] = {}
        self.locations: dict[str, str] = {}
        # Batches of prompts that a step reads at most: one, and one more for every further round.
        self.prompt_batches = 1
        # Names of numbers that operations keep from step to step.
        self._kept: set[str] = set()
        # Id of the innermost open region; empty outside of all.
        self._region = ""

    def run(
        self, call: ModelCall, batch: BatchValue, auxiliary: Sequence[BatchValue] = ()
    ) -> SymbolicBatch:
        """Record a call and the origins of its columns."""
        source, *others = [self._symbolic(call.id, value) for value in (batch, *auxiliary)]
        columns = ColumnCheck(self._roles, {earlier.id: earlier.role for earlier in self.calls})
        written = columns.check_call(call, source.origins, [other.origins for other in others])
        responses = _responses_read(call, source)
        # A generate call's rows belong to the responses that it makes itself.
        sampled = [version.call for version in responses]
        if call.kind is CallKind.GENERATE:
            sampled = [call.id]
        self.responses[call.id] = tuple(dict.fromkeys(sampled))
        origins = {name: replace(origin, responses=responses) for name, origin in written.items()}
        self._check_region(call)
        check_sampling(call, source, self.calls)
        check_kept_tokens(call, source, self.calls)
        check_response_mask(call, source, self.calls)
        self._check_operations(call)
        self.calls.append(call)
        if location := calling_location(_trace_once.__code__):
            self.locations[call.id] = location
        reads = zip((source, *others), (call.reads, *call.auxiliary_reads), strict=True)
        # One edge for each writer, with all columns that the call reads of it.
        by_writer: dict[str, set[str]] = {}
        for read, names in reads:
            for version in read.versions(names):
                by_writer.setdefault(version.call, set()).add(version.column)
        self.data_edges += [
            DataEdge(writer, call.id, tuple(sorted(names))) for writer, names in by_writer.items()
        ]
        rows = source.rows
        if isinstance(call.options, GenerateOptions):
            rows = rows.times(call.options.samples)
        self.rows[call.id] = rows.count
        return SymbolicBatch(origins, rows, self._regions())

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        """Trace the body once, as a region that runs on one of n steps."""
        self.regions.append(Region(region, "every", 1.0 / n))
        with self._inside(region):
            body()

    def no_rows(self) -> SymbolicBatch:
        """A batch without rows and columns."""
        return SymbolicBatch({}, Rows("no rows", RowCount(0.0, 0)))

    def pretraining(self) -> SymbolicBatch:
        """The step's rows of data.pretraining."""
        if self._pretraining is None:
            raise FlowError(
                "flow.pretraining() without rows: got a job without data.pretraining, allowed rows "
                "of whole texts, or of prompts with answers; add data.pretraining to the manifest, "
                "or remove the call"
            )
        return self._pretraining

    def repeat(
        self,
        region: str,
        body: Callable[[BatchValue], BatchValue],
        until: Callable[[BatchValue], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> SymbolicBatch:
        """Trace one round, as a region that runs the expected number of times."""
        outer = next((open_.id for open_ in self.regions if self._is_repeated_in(open_)), None)
        if outer is not None:
            raise FlowError(
                f"flow.repeat inside of another one: got {region}, allowed one at a time; move it "
                f"after {outer}"
            )
        # Before the body, so that outer regions come before inner ones.
        self.regions.append(Region(region, "repeat", float(expected_rounds)))
        self.prompt_batches += max_rounds - 1
        # Rows of a round have their own identity: they are not the rows of the step's prompts.
        fresh = replace(self._prompts.rows, root=f"the prompts of {region}")
        with self._inside(region):
            prompts = SymbolicBatch(self._prompts.origins, fresh, self._regions())
            result = body(prompts)
            if result is None:
                raise FlowError(
                    f"the function of {region} returns nothing: got None, allowed the batch of its "
                    "round; add `return batch`"
                )
            batch = self._symbolic(region, result)
            if fresh.root not in batch.rows.root:
                raise FlowError(
                    f"a round of {region} gives rows that do not come from its prompts: got "
                    f"{batch.rows}, allowed rows made from the prompts that the function gets; "
                    "generate from them"
                )
            rows = Rows(
                f"the rows of {region}",
                batch.rows.count.times(expected_rounds, max_rounds),
                per_group=batch.rows.per_group,
            )
            # Traced after the body: it reads the rows of all rounds so far.
            until(SymbolicBatch(batch.origins, rows, self._regions()))
        return SymbolicBatch(batch.origins, rows, self._regions())

    def _is_repeated_in(self, region: Region) -> bool:
        """True if a region repeats and encloses the current call."""
        return region.kind == "repeat" and f"{self._region}/".startswith(f"{region.id}/")

    def _check_region(self, call: ModelCall) -> None:
        """Refuse weight updates inside `repeat`, whose number of rounds is unknown."""
        changes = call.role is not None and call.changes(call.role)
        if changes and any(map(self._is_repeated_in, self.regions)):
            raise FlowError(
                f"{call.id} changes weights in rounds, of which there may be more or fewer: "
                "allowed outside of flow.repeat, on the rows of all rounds; move it after "
                "flow.repeat"
            )

    def _check_operations(self, call: ModelCall) -> None:
        """Refuse missing functions, and state that two operations would share."""
        # Kept numbers are stored in checkpoints by name, so a second one would overwrite the first.
        if not isinstance(call.options, ComputeOptions):
            return
        for operation in call.options.operations:
            if isinstance(operation, Custom):
                check_function(operation.entrypoint, operation.arguments)
                if operation.protocol is not None:
                    check_protocol(operation.protocol)
            self._check_kept(call, operation)

    def _check_kept(self, call: ModelCall, operation: Operation) -> None:
        for name in operation.keeps:
            if name in self._kept:
                raise FlowError(
                    f"{call.id} has a second operation that keeps a number of the same name: got "
                    f"{name!r} of {operation_name(operation)}, allowed one of each name in a step; "
                    "give it another name"
                )
            self._kept.add(name)

    @contextmanager
    def _inside(self, region: str) -> Iterator[None]:
        outer, self._region = self._region, region
        try:
            yield
        finally:
            self._region = outer

    def _symbolic(self, site: str, batch: BatchValue) -> SymbolicBatch:
        if not isinstance(batch, SymbolicBatch):
            raise FlowError(
                f"{site} gets something other than a batch of this step: got {batch!r}, allowed "
                "the prompts or what a call of this step returned; a step keeps no batch for the "
                "next one"
            )
        # Outside of its region a batch exists in some steps only.
        for inner in sorted(batch.regions):
            if self._region != inner and not self._region.startswith(f"{inner}/"):
                raise FlowError(
                    f"{site} reads a batch that was made inside {inner}, which does not run every "
                    f"time: got {batch!r}, allowed only inside {inner}; move the call there"
                )
        return batch

    def _regions(self) -> frozenset[str]:
        return frozenset({self._region} if self._region else ())


def trace(
    algorithm: Algorithm,
    *,
    samples_per_prompt: int = 1,
    inputs: frozenset[str] = PROMPT_COLUMNS,
    pretraining: RowCount | None = None,
    rewards: Mapping[str, RewardTerms] = MappingProxyType({}),
    on_stop: OnStop = TRAIN_ON_ALL,
    truncates_sampling: bool = False,
    has_conversations: bool = False,
) -> Graph:
    """The graph of one pass of an algorithm's step.

    Args:
        algorithm: its step runs twice here, with symbolic batches; both runs must agree.
        samples_per_prompt: responses to a prompt unless a call says otherwise.
        inputs: columns of the data.
        pretraining: rows of data.pretraining per prompt of a step. None: the job has none.
        rewards: terms of each role's score.
        on_stop: treatment of responses by the reason for their end.
        truncates_sampling: True if sampling leaves tokens out.
        has_conversations: True if responses may have several turns.

    Raises:
        FlowError: the step breaks a rule of the flow.
        InvalidAlgorithm: it raises something else, calls nothing, or differs from run to run.
    """
    require_plain_step(algorithm)
    # One trace cannot show that a step depends on time, chance or its own state.
    make_flow = partial(
        Flow,
        samples_per_prompt=samples_per_prompt,
        rewards=rewards,
        on_stop=on_stop,
        truncates_sampling=truncates_sampling,
        has_conversations=has_conversations,
    )
    first, second = (
        _trace_once(algorithm, make_flow, inputs, pretraining, rewards) for _ in range(2)
    )
    name = type(algorithm).__qualname__
    if not first.calls:
        text = f"{name}.step calls nothing: call roles of the flow in it"
        raise InvalidAlgorithm(prefix_definition(type(algorithm).step, text))
    if first != second:
        text = (
            f"{name}.step is not deterministic: {_difference(first, second)}; let conditions "
            "depend on the algorithm's settings only, not on time, chance or state that the step "
            "changes"
        )
        raise InvalidAlgorithm(prefix_definition(type(algorithm).step, text))
    return first


def _trace_once(
    algorithm: Algorithm,
    make_flow: Callable[[Roles, TracingBackend], Flow],
    inputs: frozenset[str],
    pretraining: RowCount | None,
    rewards: Mapping[str, RewardTerms],
) -> Graph:
    name = type(algorithm).__qualname__
    # Each preference pair is two adjacent rows of one prompt.
    per_prompt = 2 if PREFERENCE in inputs else 1
    rows = Rows("the prompts", RowCount(float(per_prompt), per_prompt), per_group=per_prompt)
    prompts = _data(PROMPTS, inputs, rows)
    others = None
    if pretraining is not None:
        rows = Rows("the rows of data.pretraining", pretraining)
        others = _data(PRETRAINING, PRETRAINING_COLUMNS, rows)
    try:
        with errors_located():
            declared = algorithm.roles()
            # These errors have no frame in the user's code: it has returned already.
            with errors_located_at(type(algorithm).roles):
                own = checked_roles(name, declared)
                roles = {**own, **reward_models(name, own, rewards)}
                backend = TracingBackend(roles, prompts, others)
                # Without the reward models, which a step reaches by score() only.
                flow = make_flow(own, backend)
            with flow.step():
                algorithm.step(flow, prompts)
    except FlowError:
        raise
    except (Exception, SystemExit) as error:  # the user's code: anything may come out of it
        text = f"{name}.step raised {type(error).__name__}: {error}; correct it"
        raise InvalidAlgorithm(prefix_location(error, text)) from error
    calls = tuple(backend.calls)
    return Graph(
        roles=roles,
        inputs=GraphInputs(
            prompts=columns_read(PROMPTS, backend.data_edges),
            pretraining=columns_read(PRETRAINING, backend.data_edges),
            prompt_batches=backend.prompt_batches,
        ),
        calls=calls,
        data_edges=tuple(backend.data_edges),
        version_edges=version_edges(calls, roles),
        regions=tuple(backend.regions),
        rows=backend.rows,
        responses=backend.responses,
        locations=backend.locations,
    )


def _responses_read(call: ModelCall, source: SymbolicBatch) -> tuple[ColumnVersion, ...]:
    """The sampled responses that a call computes from; none for generate."""
    if call.kind is CallKind.GENERATE:
        return ()
    responses = source.origins.get(RESPONSE_TOKENS)
    if responses is not None:
        return responses.versions if responses.is_generated else ()
    # Without the tokens: columns that were all computed from the same responses.
    read = {source.origins[name].responses for name in call.reads} - {()}
    return read.pop() if len(read) == 1 else ()


def _data(source: str, names: frozenset[str], rows: Rows) -> SymbolicBatch:
    """The batch of a step's data."""
    return SymbolicBatch(
        {name: Origin.single(source, name, COLUMNS[name].kind) for name in names}, rows
    )


def _difference(first: Graph, second: Graph) -> str:
    for one, other in zip(first.calls, second.calls, strict=False):
        if one != other:
            return f"got {one.id} with {one.options}, then {other.id} with {other.options}"
    if len(first.calls) != len(second.calls):
        return f"got {len(first.calls)} calls, then {len(second.calls)}"
    return "the same calls read columns of different calls"
