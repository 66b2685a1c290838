"""Nodes that pods may and should be on: tolerations, affinity, topology spread."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import (
    Contract,
    Count,
    LabelKey,
    Labels,
    LabelValue,
    Name,
    NonNegativeCount,
    Text,
)
from rlhf_api.rules import Rule, Violation, violation_if


class Toleration(Contract):
    """A Kubernetes toleration."""

    key: Text | None = None
    """The taint's key. Default: every key, with operator Exists."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Condition on the taint: it has this value (Equal), or it exists (Exists)."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """The taint's value, for operator Equal. Default: the empty one."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Default: every effect."""
    toleration_seconds: NonNegativeCount | None = None
    """Time for which a NoExecute taint is tolerated. Default: for ever."""


# Taints that pods tolerate.
Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=32)]

_Values = Annotated[tuple[LabelValue, ...], Field(max_length=64)]


def _values_suit_operator(requirement: LabelRequirement | NodeRequirement) -> list[Violation]:
    operator, number = requirement.operator, len(requirement.values)
    if operator in ("Exists", "DoesNotExist"):
        return violation_if(number > 0, f"{number} with {operator}", "none")
    if operator in ("Gt", "Lt"):
        is_number = number == 1 and requirement.values[0].isdecimal()
        return violation_if(not is_number, f"{number} with {operator}", "one integer")
    return violation_if(number == 0, f"none with {operator}", "at least one")


_VALUES_RULE = Rule(
    holds="",  # not in the definition, like all of a pod
    what="values that do not suit the operator",
    do="change values or operator",
    field=".values",
    check=_values_suit_operator,
)


class LabelRequirement(Contract):
    """A condition on a label of pods."""

    key: LabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Condition on its value: In, NotIn, Exists or DoesNotExist."""
    values: _Values = ()
    """Values, for In and NotIn."""

    validations: ClassVar = (_VALUES_RULE,)


class LabelSelector(Contract):
    """Pods by their labels; all conditions hold."""

    match_labels: Labels = {}
    """Labels with their values."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=32)] = ()
    """Further conditions."""


class NodeRequirement(Contract):
    """A condition on a label or field of nodes."""

    key: LabelKey
    """The label, or metadata.name in matchFields."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """Condition on its value: In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: _Values = ()
    """Values, for In and NotIn; for Gt and Lt one integer."""

    validations: ClassVar = (_VALUES_RULE,)


_NodeRequirements = Annotated[tuple[NodeRequirement, ...], Field(max_length=32)]


class NodeSelectorTerm(Contract):
    """Nodes by their labels and fields; all conditions hold."""

    match_expressions: _NodeRequirements = ()
    """Conditions on labels."""
    match_fields: _NodeRequirements = ()
    """Conditions on fields, of which Kubernetes has metadata.name."""


class NodeSelector(Contract):
    """Nodes that one of several terms selects."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=32)]
    """Terms, one of which must hold."""


_Weight = Annotated[int, Field(ge=1, le=100)]


class PreferredNodes(Contract):
    """A preference for nodes."""

    weight: _Weight
    """Weight among the preferences."""
    preference: NodeSelectorTerm
    """Nodes that are preferred."""


class NodeAffinity(Contract):
    """Nodes that pods need or prefer."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Nodes that may have the pods. Default: all."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=32)
    ] = ()
    """Nodes that are preferred."""


class PodAffinityTerm(Contract):
    """Pods near which, or far from which, a pod is to be."""

    topology_key: LabelKey
    """Label of nodes; nodes with the same value are one place."""
    label_selector: LabelSelector | None = None
    """Pods in question. Default: none."""
    namespaces: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    """Namespaces of these pods. Default: that of the job."""
    namespace_selector: LabelSelector | None = None
    """Namespaces of these pods, by labels. Default: namespaces."""
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=16)] = ()
    """Labels that these pods share with the pod."""
    mismatch_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=16)] = ()
    """Labels in which these pods differ from the pod."""


class PreferredPods(Contract):
    """A preference for nodes with certain pods."""

    weight: _Weight
    """Weight among the preferences."""
    pod_affinity_term: PodAffinityTerm
    """Pods in question."""


class PodAffinity(Contract):
    """Pods near which (podAffinity), or far from which (podAntiAffinity), pods are to be."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], Field(max_length=32)
    ] = ()
    """Terms that must hold."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredPods, ...], Field(max_length=32)
    ] = ()
    """Terms that are preferred."""


class Affinity(Contract):
    """A Kubernetes affinity."""

    node_affinity: NodeAffinity | None = None
    """Nodes that pods need or prefer."""
    pod_affinity: PodAffinity | None = None
    """Pods near which they are to be."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods far from which they are to be."""


def _domains_are_required(spread: TopologySpread) -> list[Violation]:
    is_soft = spread.when_unsatisfiable == "ScheduleAnyway"
    return violation_if(is_soft and spread.min_domains is not None, spread.min_domains)


class TopologySpread(Contract):
    """A constraint on how evenly pods spread over places."""

    max_skew: Count
    """Largest difference of pods between two places."""
    topology_key: LabelKey
    """Label of nodes; nodes with the same value are one place."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Treatment of a pod that would break it: DoNotSchedule or ScheduleAnyway."""
    label_selector: LabelSelector | None = None
    """Pods that are counted. Default: none."""
    min_domains: Count | None = None
    """Smallest number of places, for DoNotSchedule. Default: 1."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Nodes that count: those that affinity and selector allow (Honor), or all (Ignore). Default:
    Honor."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Nodes that count: those whose taints are tolerated (Honor), or all (Ignore). Default:
    Ignore."""
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=16)] = ()
    """Labels that counted pods share with the pod."""

    validations: ClassVar = (
        Rule(
            holds="",
            what="a smallest number of places with ScheduleAnyway",
            do="remove it, or write whenUnsatisfiable: DoNotSchedule",
            field=".minDomains",
            check=_domains_are_required,
        ),
    )
