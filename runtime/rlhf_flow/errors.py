"""Errors of the flow and of the planner.

FlowError                a step breaks a rule of the flow; the author of the algorithm has to fix it
├── UnknownRole          flow.x where the algorithm has no role x
├── UnknownPrimitive     role.x where a role of that kind has no x
└── InvalidAlgorithm     a class that cannot be imported, built or traced
PlanError                the job of a manifest cannot be planned
├── InvalidGraph         the manifest's graph of an algorithm is malformed
├── ManifestOutdated     the manifest contradicts the code or the model's files
├── ShapeUnknown         a model's dimensions are unknown
├── NoScores             the model of a reward is no reward model
├── DevicesUnknown       a pool's memory is unknown
├── ProfileUnusable      a profile that lacks a measurement, or is malformed
├── InvalidPlacement     groups that do not fit the roles or the pools
├── NotOffered           a setting that this version does not support
├── DoesNotDivide        a degree of parallelism that does not divide devices or models
├── KvCacheTooSmall      rollout.kvCacheMemory below one longest sequence
├── DoesNotFit           the sum of memory exceeds a device
├── TimesUnknown         an objective compares times, and they are unknown
└── StepTooLong          no number of devices makes a step as fast as required
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class FlowError(RlhfError):
    """A step function breaks a rule of the flow."""

    reason = "InvalidAlgorithm"
    exit_code = ExitCode.USER


# AttributeError, too: hasattr and getattr with a default expect it.
class UnknownRole(FlowError, AttributeError):
    """The algorithm has no such role."""


class UnknownPrimitive(FlowError, AttributeError):
    """A role of this kind has no such primitive."""


class InvalidAlgorithm(FlowError):
    """An algorithm that cannot be imported, built or traced."""


class PlanError(RlhfError):
    """The job cannot be planned."""

    reason = "InvalidPlan"
    exit_code = ExitCode.MANIFEST


class InvalidGraph(PlanError):
    """The graph in a manifest cannot be the graph of an algorithm."""

    reason = "InvalidGraph"


class ManifestOutdated(PlanError):
    """A manifest contradicts the code or the model's files."""

    reason = "ManifestOutdated"


class ShapeUnknown(PlanError):
    """A model's dimensions are unknown."""

    reason = "PlanUnknown"


class NoScores(PlanError):
    """The model of a reward has no head for scores."""

    reason = "WrongHead"
    exit_code = ExitCode.USER


class DevicesUnknown(PlanError):
    """A pool's devices or their memory are unknown."""

    reason = "PlanUnknown"


class ProfileUnusable(PlanError):
    """A profile of measured layers lacks a measurement, or is malformed."""

    reason = "PlanUnknown"


class InvalidPlacement(PlanError):
    """Groups of roles that do not fit the roles or the pools."""

    reason = "InvalidPlacement"


class NotOffered(PlanError):
    """A setting that this version does not support."""

    reason = "NotOffered"


class DoesNotDivide(PlanError):
    """A degree of parallelism that does not divide devices or models."""

    reason = "DoesNotDivide"


class KvCacheTooSmall(PlanError):
    """A cache that cannot hold one longest sequence."""

    reason = "KvCacheTooSmall"


class DoesNotFit(PlanError):
    """More memory than a device has."""

    reason = "DoesNotFit"


class TimesUnknown(PlanError):
    """An objective that compares times, on devices with unknown times."""

    reason = "TimesUnknown"


class StepTooLong(PlanError):
    """No number of devices makes a step as fast as the objective requires."""

    reason = "StepTooLong"
