"""Errors of the flow and of the planner.

FlowError                a step does what a step must not; it is the algorithm's author's to mend
├── UnknownRole          flow.x where the algorithm has no role x
├── UnknownPrimitive     role.x where a role of that kind has no x
└── InvalidAlgorithm     a class that cannot be imported, built or traced
PlanError                the manifest asks for what cannot be
├── InvalidGraph         the manifest's graph of an algorithm cannot be one
├── ManifestOutdated     the manifest says of code or models what they are not, or not any more
├── ShapeUnknown         a model's dimensions cannot be found out
├── NoScores             a reward's model is no reward model
├── DevicesUnknown       a pool's memory cannot be found out
├── ProfileUnusable      a profile that lacks what is asked of it, or that is none
├── InvalidPlacement     groups of roles that do not fit the roles or the pools
├── NotOffered           a setting that this version does not have
├── DoesNotDivide        a degree of parallelism that does not divide devices or models
├── KvCacheTooSmall      rollout.kvCacheMemory below one longest sequence
├── DoesNotFit           the sum of memory exceeds a device
├── TimesUnknown         an objective that compares times which nobody knows
└── StepTooLong          no number of devices on which a step takes as little as is asked for
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class FlowError(RlhfError):
    """A step function breaks a rule of the flow."""

    reason = "InvalidAlgorithm"
    exit_code = ExitCode.USER


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
    """The graph in a manifest cannot be that of an algorithm."""

    reason = "InvalidGraph"


class ManifestOutdated(PlanError):
    """What a manifest says of code or of a model's files is not what they say."""

    reason = "ManifestOutdated"


class ShapeUnknown(PlanError):
    """A model's dimensions cannot be found out."""

    reason = "PlanUnknown"


class NoScores(PlanError):
    """A reward's model that has another head than one of scores."""

    reason = "WrongHead"
    exit_code = ExitCode.USER


class DevicesUnknown(PlanError):
    """A pool's devices or their memory cannot be found out."""

    reason = "PlanUnknown"


class ProfileUnusable(PlanError):
    """A profile of measured layers lacks what is asked of it, or is none."""

    reason = "PlanUnknown"


class InvalidPlacement(PlanError):
    """Groups of roles that do not fit the roles or the pools."""

    reason = "InvalidPlacement"


class NotOffered(PlanError):
    """A setting that this version does not have."""

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
    """An objective that compares times, on devices whose times are not known."""

    reason = "TimesUnknown"


class StepTooLong(PlanError):
    """No number of devices on which a step takes as little as the objective asks for."""

    reason = "StepTooLong"
