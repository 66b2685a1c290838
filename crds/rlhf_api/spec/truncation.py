"""Truncated sampling: the fields of a manifest, and their values together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

TopP = Annotated[float, Field(gt=0.0, le=1.0)]
TopK = Annotated[int, Field(ge=1, le=2**31 - 1)]
MinP = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True)
class Truncation:
    """Limits of the tokens that sampling chooses from; None: no limit."""

    top_p: float | None = None
    """Smallest sum of the probabilities of the kept tokens, the likeliest ones."""
    top_k: int | None = None
    """Number of kept tokens."""
    min_p: float | None = None
    """Lowest probability of a kept token, as a share of the likeliest one's."""

    @property
    def is_active(self) -> bool:
        """True if some token may be left out."""
        return bool(self.fields)

    @property
    def fields(self) -> tuple[str, ...]:
        """The manifest's fields that leave tokens out."""
        limits = {
            "topP": self.top_p is not None and self.top_p < 1,
            "topK": self.top_k is not None,
            "minP": bool(self.min_p),
        }
        return tuple(name for name, is_set in limits.items() if is_set)


def is_truncated(owner: str) -> str:
    """CEL: true if a section has `Truncation.fields`.

    Args:
        owner: the section with the fields, such as self.rollout.
    """
    return (
        f"has({owner}.topP) && {owner}.topP < 1.0 || has({owner}.topK) || "
        f"has({owner}.minP) && {owner}.minP > 0.0"
    )
