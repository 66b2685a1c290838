"""SymbolicBatch: a batch while tracing. It knows where its fields come from and holds no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from rlhf_flow.errors import FlowError
from rlhf_flow.graph import RowCount

_INSTEAD = (
    "decide with flow.repeat(..., until=...) or flow.every(n, ...), with a condition on the "
    "algorithm's settings, or compute on the ranks with flow.compute(batch, custom(...))"
)


@dataclass(frozen=True)
class Rows:
    """Which rows a batch has, and how many of each of the step's prompts."""

    identity: str
    """Batches of equal identity can be joined."""
    count: RowCount = RowCount(1.0, 1)

    def times(self, samples: int) -> Rows:
        """So many of each."""
        if samples == 1:
            return self
        return Rows(f"{self.identity} x {samples}", self.count.times(samples, samples))


class SymbolicBatch:
    """Fields with the call that wrote each, and the identity of the rows.

    It has no values while a step is traced, so whatever would look at values is refused.

    Args:
        origins: the call that wrote each field; PROMPTS for those of the prompts.
        rows: which rows.
        regions: those in which its fields were made; it may be used inside all of them only.
    """

    def __init__(
        self, origins: Mapping[str, str], rows: Rows, regions: frozenset[str] = frozenset()
    ) -> None:
        self.origins: Mapping[str, str] = dict(origins)
        self.rows = rows
        self.regions = regions

    @property
    def fields(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.origins)

    def __or__(self, other: object) -> SymbolicBatch:
        if not isinstance(other, SymbolicBatch):
            raise FlowError(
                f"a batch is joined with something else: got {other!r}, allowed what a call "
                "returned; use `batch |= flow.<role>.<primitive>(batch)`"
            )
        if self.rows != other.rows:
            raise FlowError(
                f"batches of different rows are joined: got {self.rows.identity} and "
                f"{other.rows.identity}, allowed only the same rows; make the second from the "
                "first, or with the same samples per prompt"
            )
        regions = self.regions | other.regions
        return SymbolicBatch({**self.origins, **other.origins}, self.rows, regions)

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
        self._refuse(f"batch[{key!r}]")

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
        self._refuse(f"batch.{name}")
