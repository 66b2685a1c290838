"""What a verifier's process and its owner say to each other. Standard library only."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """Why a sample has no score."""

    RAISED = "raised"
    """The verifier raised an exception."""
    TIMED_OUT = "timedOut"
    """A batch or request took longer than timeoutSeconds."""
    DIED = "died"
    """Its process ended."""
    NON_FINITE = "nonFinite"
    """It returned NaN, infinity, or a number beyond float32."""
    NOT_A_NUMBER = "notANumber"
    """It returned something else than a number for this sample."""
    WRONG_COUNT = "wrongCount"
    """It did not return one number for each sample."""
    UNREACHABLE = "unreachable"
    """The service could not be reached, or the connection broke."""
    REFUSED = "refused"
    """The service answered with another status than 2xx."""
    UNREADABLE = "unreadable"
    """The service's answer is no JSON with a list of scores."""


@dataclass(frozen=True, slots=True)
class Load:
    """To the process: which function to serve."""

    entrypoint: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ready:
    """From the process: the function is loaded.

    metric: the one that it declares to measure.
    """

    metric: str | None


@dataclass(frozen=True, slots=True)
class Unusable:
    """From the process: the function cannot be loaded, and why.

    has_raised: whether that is because its module raised while it was imported.
    """

    why: str
    has_raised: bool = False


@dataclass(frozen=True, slots=True)
class BatchScores:
    """From the process: the scores of one batch.

    values: float32, one for each sample, 0 where there is none; empty if the whole batch failed.
    faults: sample's number in the batch to what is wrong with it, also in words.
    batch_fault: what is wrong with the whole batch, if something is.
    detail: the same in words, with the verifier's traceback if it raised.
    by_one_sample: whether one of the samples may be why the whole batch failed.
    """

    values: array[float] = field(default_factory=lambda: array("f"))
    faults: Mapping[int, tuple[Fault, str]] = field(default_factory=dict)
    batch_fault: Fault | None = None
    detail: str = ""
    by_one_sample: bool = False
