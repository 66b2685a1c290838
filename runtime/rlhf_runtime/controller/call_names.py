"""Names of the metrics of a step's calls, distinct for several generate calls. Pure.

Calls on the responses that are trained on have the plain names, such as `reward/mean`. Calls on
another generate call's responses are named after it: `reward/mean.actor.2` is of the responses of
`actor.generate#2`. A call that is made again on the same responses has its number: `actor/loss.2`.
Calls in `flow.every(10, ...)` have the region as prefix: `every-10/reward/mean`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_api.calls import FINISH, RESHARD, CallKind
from rlhf_flow.jobs.job_graphs import policy_role
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.step.flow import REPEAT
from rlhf_flow.trace.graph import Graph
from rlhf_runtime.calls.reports import Statistics

# The site of `flow.compute`.
COMPUTE = "compute"
# Prefix of totals over the complete step, whichever call adds to them.
STEP_TOTALS = "batch/"


@dataclass(frozen=True)
class MetricNaming:
    """Prefix and suffixes for the metric names of one call."""

    prefix: str = ""
    """The region."""
    suffix: str = ""
    """The generate call, unless its responses have the plain names, and the call's number."""
    totals_suffix: str = ""
    """The same for totals, to which several calls add."""

    def rename(self, own: Statistics) -> Statistics:
        """Rename a call's metrics to the step's names."""

        def name(metric: str) -> str:
            return f"{self.prefix}{metric}{self.suffix}"

        def total(metric: str) -> str:
            is_step_total = metric.startswith(STEP_TOTALS)
            return metric if is_step_total else f"{self.prefix}{metric}{self.totals_suffix}"

        return Statistics(
            {name(metric): value for metric, value in own.means.items()},
            {name(metric): value for metric, value in own.maxima.items()},
            {total(metric): value for metric, value in own.sums.items()},
            {name(metric): value for metric, value in own.spreads.items()},
        )


class CallNames:
    """Metric names of every call of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._names = dict(_names(graph))

    def for_call(self, call_id: str) -> MetricNaming:
        """Return the naming of a call."""
        # Bringing weights and finishing responses are named after their generate call. Other calls
        # outside of the graph need no label.
        generates = re.sub(rf"\.({RESHARD}|{FINISH})\b", ".generate", call_id, count=1)
        return self._names.get(generates, MetricNaming())


class _Site(NamedTuple):
    """Calls that report metrics of the same names."""

    region: str
    what: str


def _names(graph: Graph) -> Iterator[tuple[str, MetricNaming]]:
    main = trained_generate_call(graph)
    labels = _labels(graph, main)
    plain = _plain_calls(graph, _site, main)
    plain_totals = _plain_calls(graph, _site_of_totals, main)
    seen: Counter[tuple[_Site, str]] = Counter()
    for call in graph.calls:
        site = _site(call)
        responses = _naming_calls(graph, call)
        suffix = _label(responses, plain.get(site), labels)
        seen[site, suffix] += 1
        count = seen[site, suffix]
        # Metrics of operations are named after their fields already.
        number = f".{count}" if count > 1 and site.what != COMPUTE else ""
        yield (
            call.id,
            MetricNaming(
                f"{site.region}/".replace("#", ".") if site.region else "",
                suffix + number,
                _label(responses, plain_totals.get(_site_of_totals(call)), labels),
            ),
        )


def trained_generate_call(graph: Graph) -> str | None:
    """Return the generate call whose responses are trained on; None if nothing generates.

    That is the first one that the policy is trained on, else another role, else the graph's first.
    """
    trainings = graph.calls_of_kind(CallKind.TRAIN)
    policy = policy_role(graph) if trainings else None
    ordered = sorted(trainings, key=lambda call: call.role != policy)
    candidates = [generate for call in ordered for generate in graph.responses.get(call.id, ())]
    candidates += [call.id for call in graph.calls_of_kind(CallKind.GENERATE)]
    return next(iter(candidates), None)


def _naming_calls(graph: Graph, call: ModelCall) -> tuple[str, ...]:
    """Return the generate calls that a call's metrics may be named after."""
    # Metrics of a training are named after its role only, whatever it is trained on.
    return () if call.kind is CallKind.TRAIN else graph.responses.get(call.id, ())


def _site(call: ModelCall) -> _Site:
    region, _, site = call.id.rpartition("/")

    # Metrics are named after the role, except those of responses.
    what = call.method if call.kind is CallKind.GENERATE else site.partition("#")[0]
    return _Site(_region_text(region), what)


def _site_of_totals(call: ModelCall) -> _Site:
    return _Site(_site(call).region, call.kind.value)


def _region_text(region: str) -> str:
    """Return a region as it is shown in names."""
    # Rounds of a step's first `flow.repeat` are a part of the step.
    first, _, rest = region.partition("/")
    return rest if first == REPEAT else region


def _plain_calls(
    graph: Graph, site_of: Callable[[ModelCall], _Site], main: str | None
) -> Mapping[_Site, str]:
    """Return the generate call whose responses have the plain names at each site: the main one, or
    the first."""
    plain: dict[_Site, str] = {}
    for call in graph.calls:
        for generate in _naming_calls(graph, call):
            if generate == main or site_of(call) not in plain:
                plain[site_of(call)] = generate
    return plain


def _labels(graph: Graph, main: str | None) -> Mapping[str, str]:
    """Return the label of every generate call except the main one: role, number from 2 on, and the
    region in front if the label exists already."""
    labels: dict[str, str] = {}
    for call in graph.calls_of_kind(CallKind.GENERATE):
        region, _, site = call.id.rpartition("/")
        own = site.replace(".generate", "", 1).replace("#", ".")
        if call.id == main:
            continue
        if own in labels.values():
            own = f"{region or 'step'}.{own}".replace("#", ".").replace("/", ".")
        labels[call.id] = own
    return labels


def _label(responses: tuple[str, ...], plain: str | None, labels: Mapping[str, str]) -> str:
    return f".{labels[responses[0]]}" if responses and plain not in responses else ""
