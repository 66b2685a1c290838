"""SymbolicBatch: a batch while tracing. It knows where its fields come from and holds no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from rlhf_flow.errors import FlowError
from rlhf_flow.step.checks import suggest
from rlhf_flow.step.columns import ALLOWED_NAMES, RESPONSE_TOKENS, Kind, is_name
from rlhf_flow.trace.graph import RowCount

METHODS = ("broadcast", "concat", "fields", "rename", "select")
"""What a step may ask of a batch, beside joining it with another."""

_INSTEAD = (
    "decide with flow.repeat(..., until=...) or flow.every(n, ...), with a condition on the "
    "algorithm's settings, or compute on the ranks with flow.compute(batch, Custom(...))"
)


@dataclass(frozen=True)
class Rows:
    """Which rows a batch has, and how many of each of the step's prompts. Batches of equal rows can
    be joined."""

    root: str
    """Where they come from."""
    count: RowCount = RowCount(1.0, 1)
    samples: tuple[int, ...] = ()
    """How often each was answered, one generate call after the other."""
    per_group: int = 1
    """Rows that are neighbours because they are of one prompt."""

    def times(self, samples: int) -> Rows:
        """So many of each."""
        if samples == 1:
            return self
        count = self.count.times(samples, samples)
        return Rows(self.root, count, (*self.samples, samples), self.per_group * samples)

    def then(self, others: Rows, root: str) -> Rows:
        """These, and others after them.

        Args:
            root: where both come from, in this order.
        """
        return Rows(root, self.count.plus(others.count), (), self.per_group)

    def is_source_of(self, others: Rows) -> bool:
        """Whether the others were generated from these, or are these."""
        return self.root == others.root and others.samples[: len(self.samples)] == self.samples

    def __str__(self) -> str:
        return " x ".join([self.root, *map(str, self.samples)])


@dataclass(frozen=True)
class Written:
    """A field as a call wrote it."""

    call: str
    """PROMPTS or PRETRAINING for those of the data."""
    field: str


@dataclass(frozen=True)
class Origin:
    """Where a field comes from."""

    places: tuple[Written, ...]
    """What it is where it was written: for rows put one after the other, by several calls."""
    kind: Kind | None = None
    """What it holds. None: nobody knows."""
    is_generated: bool = False
    """Whether a generate call sampled it."""
    about: tuple[Written, ...] = ()
    """The responses that it was computed from; empty: none, or they were not sampled."""

    @staticmethod
    def of(call: str, field: str, kind: Kind | None, is_generated: bool = False) -> Origin:
        """Of a field that one call wrote, or one set of data has."""
        return Origin((Written(call, field),), kind, is_generated)

    @property
    def calls(self) -> str:
        """Who wrote it, in words."""
        return " and ".join(dict.fromkeys(place.call for place in self.places))

    def then(self, other: Origin) -> Origin:
        """Of a column whose further rows come from elsewhere."""
        places = tuple(dict.fromkeys((*self.places, *other.places)))
        about = tuple(dict.fromkeys((*self.about, *other.about)))
        return Origin(places, self.kind, self.is_generated and other.is_generated, about)


class SymbolicBatch:
    """Fields with the origin of each, and which rows.

    It has no values while a step is traced, so whatever would look at values is refused.

    Args:
        origins: of each field, by its name.
        rows: which rows.
        regions: those in which its fields were made; it may be used inside all of them only.
    """

    def __init__(
        self, origins: Mapping[str, Origin], rows: Rows, regions: frozenset[str] = frozenset()
    ) -> None:
        self.origins: Mapping[str, Origin] = dict(origins)
        self.rows = rows
        self.regions = regions

    @property
    def fields(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.origins)

    def places(self, names: Iterable[str]) -> list[Written]:
        """Where some of its fields were written."""
        return [place for name in names for place in self.origins[name].places]

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
        self._check_answers(other)
        joined = {**self.origins, **other.origins}
        _check_about(joined)
        return SymbolicBatch(joined, self.rows, self.regions | other.regions)

    def select(self, *names: str) -> SymbolicBatch:
        """These columns only."""
        self._check_has("select", names)
        return SymbolicBatch({name: self.origins[name] for name in names}, self.rows, self.regions)

    def rename(self, **names: str) -> SymbolicBatch:
        """The same columns, some under other names."""
        self._check_has("rename", names)
        kept = {name: each for name, each in self.origins.items() if name not in names}
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
        """The columns with the rows of another batch that was generated from the same ones."""
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
        """These rows, then those of another batch with the same columns."""
        if not isinstance(other, SymbolicBatch):
            raise FlowError(
                f"batch.concat takes another batch: got {other!r}, allowed what a call returned; "
                "pass one"
            )
        if self.fields != other.fields:
            raise FlowError(
                "batches of different columns are put one after the other: got "
                f"{', '.join(sorted(self.fields ^ other.fields))} in one of them only, allowed the "
                "same columns in both; choose those by select"
            )
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
        origins = {name: each.then(other.origins[name]) for name, each in self.origins.items()}
        rows = self.rows.then(other.rows, f"{self._lineage()} and {other._lineage()}")
        return SymbolicBatch(origins, rows, self.regions | other.regions)

    def _lineage(self) -> str:
        """Which rows it has, and who sampled their responses."""
        found = [each.about for _, each in sorted(self.origins.items())]
        if RESPONSE_TOKENS in self.origins:
            found = [self.origins[RESPONSE_TOKENS].places]
        calls = [place.call for place in next(filter(None, found), ())]
        return f"{self.rows} of {' and '.join(calls)}" if calls else str(self.rows)

    def _check_answers(self, other: SymbolicBatch) -> None:
        """Refuse anything else in the place of what a generate call has sampled."""
        for name, new in other.origins.items():
            old = self.origins.get(name, new)
            if old == new or not old.is_generated:
                continue
            if new.is_generated:
                raise FlowError(
                    f"a join puts other responses in the place of those that the batch has: got "
                    f"{name} of {new.calls} over that of {old.calls}, allowed fields of the same "
                    "responses; keep two batches, or choose fields of one by select and name them "
                    "anew by rename"
                )
            raise FlowError(
                f"a join overwrites what was generated: got {name} of {new.calls} over that of "
                f"{old.calls}, allowed the generated fields as they are, for trainers and "
                "verifiers read them as one; give the other a name of its own, or, where it is "
                "to be read in its place, leave the generated one out of the batch by select first"
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
                    f"batch.{method} of a field that the batch does not have: got {name}, allowed "
                    f"{', '.join(sorted(self.origins))}{order}; "
                    f"{suggest(name, self.origins, 'correct it')}"
                )

    def __repr__(self) -> str:
        return f"<batch of {', '.join(sorted(self.origins)) or 'no fields'}>"

    def _refuse(self, use: str) -> NoReturn:
        raise FlowError(
            f"a step looks at a batch's values: got {use}, allowed only calls of the flow, because "
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
            f"a step looks at a batch's values: got batch[{key!r}], allowed batch.select({key!r}) "
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

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        otherwise = "compute on its values by flow.compute(batch, Custom(...))"
        raise FlowError(
            f"a batch has no {name}: got batch.{name}, allowed `|` for a join, "
            f"{', '.join(METHODS)}; {suggest(name, METHODS, otherwise)}"
        )


def _check_about(origins: Mapping[str, Origin]) -> None:
    """Refuse what was computed from other responses under the name that it would have of these."""
    responses = origins.get(RESPONSE_TOKENS)
    if responses is None or not responses.is_generated:
        return
    for name, origin in origins.items():
        is_renamed = all(place.field != name for place in origin.places)
        if origin.about and origin.about != responses.places and not is_renamed:
            others = " and ".join(dict.fromkeys(place.call for place in origin.about))
            raise FlowError(
                f"a join puts {name} beside responses that it is not about: got that of "
                f"{origin.calls}, computed from the responses of {others}, beside those of "
                f"{responses.calls}, allowed what is computed from this batch; compute it from "
                "there, or choose it by select and name it anew by rename where it is a baseline"
            )
