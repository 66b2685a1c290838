"""Messages between a verifier's process and its owner. Standard library only."""

from __future__ import annotations

import math
import reprlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RewardFault(StrEnum):
    """The reason for a missing score."""

    RAISED = "raised"
    """The verifier raised an exception."""
    TIMED_OUT = "timedOut"
    """A batch or request took longer than timeoutSeconds."""
    DIED = "died"
    """Its process exited."""
    NON_FINITE = "nonFinite"
    """It returned NaN, infinity, or a number beyond float32."""
    NOT_A_NUMBER = "notANumber"
    """It returned no number for this sample."""
    WRONG_COUNT = "wrongCount"
    """It did not return one number per sample."""
    UNREACHABLE = "unreachable"
    """The service could not be reached, or the connection broke."""
    REFUSED = "refused"
    """The service answered with another status than 2xx."""
    UNREADABLE = "unreadable"
    """The service's answer is not JSON with a list of scores."""


@dataclass(frozen=True, slots=True)
class Load:
    """Request to the process: the function to serve.

    parts: weights of the parts that it returns, by name; empty if it returns numbers.
    """

    entrypoint: str
    parameters: Mapping[str, Any]
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """Reply of the process: the function is loaded.

    metric: the metric that it declares.
    """

    metric: str | None


@dataclass(frozen=True, slots=True)
class Unusable:
    """Reply of the process: the function cannot be loaded.

    why: description of the problem.
    has_raised: True if its module raised while it was imported.
    """

    why: str
    has_raised: bool = False


@dataclass(frozen=True, slots=True)
class BatchScores:
    """Reply of the process: the scores of one batch.

    values: float32, one per sample, 0 without a score; empty if the batch failed.
    parts: the same of each part by name; NaN where a sample has no such part.
    abstained: numbers of the samples, in the batch, on which the verifier abstained.
    faults: fault and description by the sample's number in the batch.
    batch_fault: the fault of the complete batch, if it failed.
    detail: description of the batch's fault, with the verifier's traceback if it raised.
    retry_alone: True if one sample may have caused the batch's fault: score each one alone.
    """

    values: array[float] = field(default_factory=lambda: array("f"))
    abstained: tuple[int, ...] = ()
    faults: Mapping[int, tuple[RewardFault, str]] = field(default_factory=dict)
    batch_fault: RewardFault | None = None
    detail: str = ""
    retry_alone: bool = False
    parts: Mapping[str, array[float]] = field(default_factory=dict)


FLOAT32_MAX = 3.4028234663852886e38
# Of a value that is no score, in messages.
MAX_SHOWN_CHARACTERS = 200


def check_scores(
    values: Sequence[Any], num_samples: int, parts: Mapping[str, float] | None = None
) -> BatchScores:
    """Convert a batch's scores to float32.

    None means that the verifier abstains. Values that are not finite in float32 become faults.

    Args:
        values: of the samples: numbers, or maps of numbers if there are parts.
        num_samples: of the batch.
        parts: weights of parts by name; a sample's score is their weighted sum. None or empty: no
            parts.
    """
    if len(values) != num_samples:
        return wrong_count(f"{len(values)} values", num_samples)
    scores = array("f", bytes(4 * len(values)))
    columns = {name: array("f", [math.nan] * len(values)) for name in parts or ()}
    abstained: list[int] = []
    faults: dict[int, tuple[RewardFault, str]] = {}
    for index, value in enumerate(values):
        try:
            returned = _parts_of(value, parts) if parts else {"": value}
            numbers = {
                name: _finite(part, name) for name, part in returned.items() if part is not None
            }
            weights = parts or {"": 1.0}
            total = _finite(sum(weights[name] * number for name, number in numbers.items()), "")
        except _BadValue as error:
            faults[index] = (error.fault, error.detail)
            continue
        if not numbers:
            abstained.append(index)
            continue
        scores[index] = total
        for name in columns.keys() & numbers.keys():
            columns[name][index] = numbers[name]
    return BatchScores(scores, tuple(abstained), faults, parts=columns)


class _BadValue(Exception):
    """A sample's value that is no score."""

    def __init__(self, fault: RewardFault, got: str, allowed: str) -> None:
        super().__init__(got)
        self.fault = fault
        self.detail = f"got {got}, allowed {allowed}"


def _parts_of(value: Any, parts: Mapping[str, float]) -> Mapping[str, Any]:
    """Return the parts of a sample's value; none if the verifier abstains."""
    if value is None:
        return {}
    allowed = f"a map of the parts {', '.join(parts)}, or None to abstain"
    if not isinstance(value, Mapping):
        raise _BadValue(RewardFault.NOT_A_NUMBER, _shown(value), allowed)
    for name in value:
        if name not in parts:
            raise _BadValue(RewardFault.NOT_A_NUMBER, f"the part {_shown(name)}", allowed)
    return value


def _finite(value: Any, part: str) -> float:
    """Return a number that is finite in float32."""
    number = _as_number(value)
    if number is None and isinstance(value, Mapping):
        allowed = "a finite number, or None to abstain: a map needs the reward's parts"
        raise _BadValue(RewardFault.NOT_A_NUMBER, _shown(value), allowed)
    # A finite float64 may still overflow float32.
    if number is None or not math.isfinite(number) or abs(number) > FLOAT32_MAX:
        fault = RewardFault.NOT_A_NUMBER if number is None else RewardFault.NON_FINITE
        of_part = f" for the part {part}" if part else ""
        raise _BadValue(fault, f"{_shown(value)}{of_part}", "a finite number, or None to abstain")
    return number


def _as_number(value: Any) -> float | None:
    """Convert a number, or an array or tensor of one number; None for anything else."""
    # Methods of other libraries may raise anything; it must cost this sample only.
    try:
        item = getattr(value, "item", None)
        number = item() if callable(item) else value
        # `float` also accepts numbers in texts, but such a verifier has a mistake.
        is_number = hasattr(number, "__float__") or hasattr(number, "__index__")
        return float(number) if is_number else None
    except OverflowError:
        return math.inf
    except Exception:
        return None


def _shown(value: Any) -> str:
    """Describe a value briefly, whatever its `repr` does."""
    try:
        return reprlib.repr(value)[:MAX_SHOWN_CHARACTERS]
    except Exception:
        return f"a value of type {type(value).__name__}"


def wrong_count(got: str, num_samples: int) -> BatchScores:
    """Build the fault of a batch whose result is not one number per sample."""
    return BatchScores(
        batch_fault=RewardFault.WRONG_COUNT,
        detail=f"got {got} for {num_samples} samples, allowed one number for each sample",
    )
