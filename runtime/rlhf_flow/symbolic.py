"""SymbolicBatch: a batch while tracing. It knows where its fields come from and holds no data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from rlhf_flow.errors import FlowError

_INSTEAD = (
    "decide with flow.repeat(..., until=...) or flow.every(n, ...), with a condition on the "
    "algorithm's settings, or compute on the ranks with flow.compute(batch, custom(...))"
)


class SymbolicBatch:
    """Fields with the call that wrote each, and the identity of the rows.

    It has no values while a step is traced, so whatever would look at values is refused.

    Args:
        origins: the call that wrote each field; PROMPTS for those of the prompts.
        rows: identity of the rows; batches of equal identity can be joined.
        region: the region in which it was made, "" outside all.
    """

    def __init__(self, origins: Mapping[str, str], rows: str, region: str = "") -> None:
        self.origins: Mapping[str, str] = dict(origins)
        self.rows = rows
        self.region = region

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
                f"batches of different rows are joined: got {self.rows} and {other.rows}, allowed "
                "only the same rows; make the second from the first, or with the same samples per "
                "prompt"
            )
        inner = max(self.region, other.region, key=len)
        return SymbolicBatch({**self.origins, **other.origins}, self.rows, inner)

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
