"""SymbolicBatch: a batch during tracing. It has origins of columns and no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from rlhf_flow.errors import FlowError
from rlhf_flow.step.checks import suggest
from rlhf_flow.step.columns import ALLOWED_NAMES, RESPONSE_TOKENS, Kind, is_name
from rlhf_flow.trace.graph import RowCount

# Attributes of a batch that a step may use, in addition to `|`.
METHODS = ("broadcast", "column_names", "concat", "rename", "select")

_INSTEAD = (
    "decide with flow.repeat(..., until=...) or flow.every(n, ...), with a condition on the "
    "algorithm's settings, or compute on the ranks with flow.compute(batch, Custom(...))"
)


@dataclass(frozen=True)
class Rows:
    """Identity and number of a batch's rows. Batches of equal rows can be joined."""

    root: str
    """Source of the rows, in words."""
    count: RowCount = RowCount(1.0, 1)
    samples: tuple[int, ...] = ()
    """Responses per row of each generate call in sequence."""
    per_group: int = 1
    """Adjacent rows of one prompt."""

    def times(self, samples: int) -> Rows:
        """The rows after a generate call with this many samples."""
        # One response per row leaves the rows as they are, so prompts and responses can be joined.
        if samples == 1:
            return self
        count = self.count.times(samples, samples)
        return Rows(self.root, count, (*self.samples, samples), self.per_group * samples)

    def then(self, others: Rows, root: str) -> Rows:
        """Append other rows.

        Args:
            root: source of both, in words.
        """
        # A new root: of rows of two sources neither batch is the source.
        return Rows(root, self.count.plus(others.count), (), self.per_group)

    def is_source_of(self, others: Rows) -> bool:
        """True if the others were generated from these, or are these."""
        return self.root == others.root and others.samples[: len(self.samples)] == self.samples

    def __str__(self) -> str:
        return " x ".join([self.root, *map(str, self.samples)])


@dataclass(frozen=True)
class ColumnVersion:
    """A column as one call wrote it."""

    call: str
    """PROMPTS or PRETRAINING for columns of the data."""
    column: str


@dataclass(frozen=True)
class Origin:
    """The calls that wrote a column, and the responses behind it."""

    versions: tuple[ColumnVersion, ...]
    """One, or several after `concat`."""
    kind: Kind | None = None
    """None: unknown."""
    is_generated: bool = False
    """True: a generate call sampled it."""
    responses: tuple[ColumnVersion, ...] = ()
    """The sampled responses that it was computed from; empty: none."""

    @staticmethod
    def single(call: str, column: str, kind: Kind | None, is_generated: bool = False) -> Origin:
        """The origin of a column that one call or one set of data wrote."""
        return Origin((ColumnVersion(call, column),), kind, is_generated)

    @property
    def calls(self) -> str:
        """The calls that wrote it, in words."""
        return " and ".join(dict.fromkeys(version.call for version in self.versions))

    def then(self, other: Origin) -> Origin:
        """The origin of a column after `concat`."""
        versions = tuple(dict.fromkeys((*self.versions, *other.versions)))
        responses = tuple(dict.fromkeys((*self.responses, *other.responses)))
        # Responses of the data next to sampled ones are not all sampled.
        is_generated = self.is_generated and other.is_generated
        return Origin(versions, self.kind, is_generated, responses)


class SymbolicBatch:
    """The origins of columns, and the identity of the rows. Every use of values is refused.

    Args:
        origins: of each column, by its name.
        rows: identity of the rows.
        regions: in which its columns were written; it may be used only inside all of them.
    """

    def __init__(
        self, origins: Mapping[str, Origin], rows: Rows, regions: frozenset[str] = frozenset()
    ) -> None:
        self.origins: Mapping[str, Origin] = dict(origins)
        self.rows = rows
        self.regions = regions

    @property
    def column_names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.origins)

    def versions(self, names: Iterable[str]) -> list[ColumnVersion]:
        """The versions of some of its columns."""
        return [version for name in names for version in self.origins[name].versions]

    def __or__(self, other: object) -> SymbolicBatch:
        if not isinstance(other, SymbolicBatch):
            raise FlowError(
                f"a batch is joined with something else: got {other!r}, allowed what a call "
                "returned; use `batch |= flow.<role>.<primitive>(batch)`"
            )
        if self.rows != other.rows:
            raise FlowError(
                f"batches of different rows are joined: got {self.rows} and {other.rows}, allowed "
                "only the same rows; make the second from the first, with the same samples per "
                "prompt, or give it the first one's rows by broadcast"
            )
        self._check_generated(other)
        joined = {**self.origins, **other.origins}
        # After the join, because either side may bring the responses.
        _check_responses(joined)
        return SymbolicBatch(joined, self.rows, self.regions | other.regions)

    def select(self, *names: str) -> SymbolicBatch:
        """A batch of some columns."""
        self._check_has("select", names)
        return SymbolicBatch({name: self.origins[name] for name in names}, self.rows, self.regions)

    def rename(self, **names: str) -> SymbolicBatch:
        """The same columns, some under other names."""
        self._check_has("rename", names)
        kept = {name: origin for name, origin in self.origins.items() if name not in names}
        for new in names.values():
            if not is_name(new) or new in kept or list(names.values()).count(new) > 1:
                raise FlowError(
                    f"batch.rename gives a name that it cannot: got {new!r}, allowed "
                    f"{ALLOWED_NAMES}, and none that the batch has ({', '.join(sorted(kept))}); "
                    "choose another one"
                )
        renamed = {new: self.origins[old] for old, new in names.items()}
        return SymbolicBatch({**kept, **renamed}, self.rows, self.regions)

    def broadcast(self, like: object) -> SymbolicBatch:
        """The columns with the rows of a batch that was generated from this one."""
        if not isinstance(like, SymbolicBatch):
            raise FlowError(
                f"batch.broadcast takes the rows of a batch: got {like!r}, allowed what a call "
                "returned; pass one"
            )
        if not self.rows.is_source_of(like.rows):
            raise FlowError(
                f"a batch cannot be broadcast to rows that do not come from its own: got "
                f"{self.rows} for {like.rows}, allowed what was generated from {self.rows}; sample "
                "one response for each prompt (samples=1)"
            )
        return SymbolicBatch(self.origins, like.rows, self.regions | like.regions)

    def concat(self, other: object) -> SymbolicBatch:
        """Append the rows of a batch with the same columns."""
        if not isinstance(other, SymbolicBatch):
            raise FlowError(
                f"batch.concat takes another batch: got {other!r}, allowed what a call returned; "
                "pass one"
            )
        if self.column_names != other.column_names:
            raise FlowError(
                "batches of different columns are put one after the other: got "
                f"{', '.join(sorted(self.column_names ^ other.column_names))} in one of them only, "
                "allowed the same columns in both; choose those by select"
            )
        # Adjacent rows form a group: with unequal numbers nothing could tell where one ends.
        if self.rows.per_group != other.rows.per_group:
            raise FlowError(
                "batches with unequal numbers of rows for a prompt are put one after the other: "
                f"got {self.rows.per_group} of {self.rows} and {other.rows.per_group} of "
                f"{other.rows}, allowed equally many; sample the same number of responses for both"
            )
        for name, origin in self.origins.items():
            if origin.kind is not other.origins[name].kind:
                raise FlowError(
                    f"columns of different kinds are put one after the other: got {name}, from "
                    f"{origin.calls} and from {other.origins[name].calls}, allowed the same kind "
                    "of thing in both; rename one of them and select others"
                )
        origins = {name: origin.then(other.origins[name]) for name, origin in self.origins.items()}
        rows = self.rows.then(other.rows, f"{self._lineage()} and {other._lineage()}")
        return SymbolicBatch(origins, rows, self.regions | other.regions)

    def _lineage(self) -> str:
        """The rows, and the calls that sampled their responses, in words."""
        responses = [origin.responses for _, origin in sorted(self.origins.items())]
        if RESPONSE_TOKENS in self.origins:
            responses = [self.origins[RESPONSE_TOKENS].versions]
        calls = [version.call for version in next(filter(None, responses), ())]
        return f"{self.rows} of {' and '.join(calls)}" if calls else str(self.rows)

    def _check_generated(self, other: SymbolicBatch) -> None:
        """Refuse a join that overwrites what a generate call sampled."""
        for name, new in other.origins.items():
            old = self.origins.get(name, new)
            # Computed columns may be replaced, as by a second estimate of advantages.
            if old == new or not old.is_generated:
                continue
            if new.is_generated:
                raise FlowError(
                    f"a join replaces the responses of the batch by others: got "
                    f"{name} of {new.calls} over that of {old.calls}, allowed columns of the same "
                    "responses; keep two batches, or select columns of one and rename them"
                )
            raise FlowError(
                f"a join overwrites what was generated: got {name} of {new.calls} over that of "
                f"{old.calls}, allowed the generated columns as they are, because trainers "
                "and verifiers read them together; rename the other one, or, to replace the "
                "generated one, leave it out of the batch by select first"
            )

    def _check_has(self, method: str, names: Iterable[str]) -> None:
        for name in names:
            if not isinstance(name, str):
                raise FlowError(
                    f"batch.{method} takes names one by one: got {name!r}, allowed texts; write "
                    f'batch.{method}("one", "another")'
                )
            if name not in self.origins:
                order = ", as rename(old='new')" if method == "rename" else ""
                raise FlowError(
                    f"batch.{method} of a column that the batch does not have: got {name}, allowed "
                    f"{', '.join(sorted(self.origins))}{order}; "
                    f"{suggest(name, self.origins, 'correct it')}"
                )

    def __repr__(self) -> str:
        return f"<batch of {', '.join(sorted(self.origins)) or 'no columns'}>"

    # There are no values during a trace, and in a run they are on the ranks. Python's defaults
    # would let some uses pass: `if batch` would be true, `batch == other` false.
    def _refuse(self, use: str) -> NoReturn:
        raise FlowError(
            f"a step uses a batch's values: got {use}, allowed only calls of the flow, because "
            f"the values are not on the driver; {_INSTEAD}"
        )

    def __bool__(self) -> NoReturn:
        self._refuse("a truth value (if, while, and, or, not)")

    def __len__(self) -> NoReturn:
        self._refuse("len(batch)")

    def __iter__(self) -> NoReturn:
        self._refuse("iteration over a batch")

    def __contains__(self, item: object) -> NoReturn:
        self._refuse(f"`{item!r} in batch`")

    def __getitem__(self, key: object) -> NoReturn:
        raise FlowError(
            f"a step uses a batch's values: got batch[{key!r}], allowed batch.select({key!r}) "
            "for a batch of this column; its values are not on the driver: compute on them by "
            "flow.compute(batch, Custom(...))"
        )

    def __float__(self) -> NoReturn:
        self._refuse("float(batch)")

    def __int__(self) -> NoReturn:
        self._refuse("int(batch)")

    def __index__(self) -> NoReturn:
        self._refuse("a batch as an index")

    def __eq__(self, other: object) -> NoReturn:
        self._refuse("a comparison (==, !=)")

    def __lt__(self, other: object) -> NoReturn:
        self._refuse("a comparison (<)")

    def __le__(self, other: object) -> NoReturn:
        self._refuse("a comparison (<=)")

    def __gt__(self, other: object) -> NoReturn:
        self._refuse("a comparison (>)")

    def __ge__(self, other: object) -> NoReturn:
        self._refuse("a comparison (>=)")

    # A class with __eq__ loses its hash, and the identity of a batch is safe to hash.
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        # Copying and pickling probe for such methods, and expect this error.
        if name.startswith("_"):
            raise AttributeError(name)
        otherwise = "compute on its values by flow.compute(batch, Custom(...))"
        raise FlowError(
            f"a batch has no {name}: got batch.{name}, allowed `|` for a join, "
            f"{', '.join(METHODS)}; {suggest(name, METHODS, otherwise)}"
        )


def _check_responses(origins: Mapping[str, Origin]) -> None:
    """Refuse a column of other responses under its original name."""
    responses = origins.get(RESPONSE_TOKENS)
    if responses is None or not responses.is_generated:
        return
    for name, origin in origins.items():
        # A renamed column is a deliberate use, such as a baseline.
        is_renamed = all(version.column != name for version in origin.versions)
        if origin.responses and origin.responses != responses.versions and not is_renamed:
            others = " and ".join(dict.fromkeys(version.call for version in origin.responses))
            raise FlowError(
                f"a join adds {name} of other responses: got that of {origin.calls}, computed from "
                f"the responses of {others}, next to those of {responses.calls}, allowed columns "
                "computed from this batch; compute it from this batch, or select and rename it if "
                "it is a baseline"
            )
