"""How the metrics of a step's calls are named, so that those of several generate calls stay apart.

Calls that work on the responses which are trained on have the plain names, such as `reward/mean`.
Those of another generate call are named after it: `reward/mean.actor.2` is of the responses of
`actor.generate#2`. A call that is made again on the same responses has its number: `actor/loss.2`.
What runs in `flow.every(10, ...)` has its region in front: `every-10/reward/mean`. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_api.calls import FINISH, RESHARD, CallKind
from rlhf_flow.jobs.job_graphs import policy_of
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.step.flow import REPEAT
from rlhf_flow.trace.graph import Graph
from rlhf_runtime.calls.reports import Statistics

COMPUTE = "compute"
"""The site of `flow.compute`."""
STEP_TOTALS = "batch/"
"""Totals that are of the whole step, whoever adds to them."""


@dataclass(frozen=True)
class MetricNaming:
    """What is put around the names of one call's metrics."""

    prefix: str = ""
    """Its region."""
    suffix: str = ""
    """Whose responses it is about, where these are not the plain ones, and its number."""
    totals_suffix: str = ""
    """The same for totals, to which several calls add."""

    def rename(self, own: Statistics) -> Statistics:
        """A call's statistics under the names that they have in the step."""

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
    """What metrics of each call of a graph are named."""

    def __init__(self, graph: Graph) -> None:
        self._names = dict(_names(graph))

    def for_call(self, call_id: str) -> MetricNaming:
        """Of a call. Bringing weights and finishing responses are named as the generate call that
        they are for; whatever else the graph does not have has nothing to tell apart."""
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
        # What operations report is named after the fields that it is about.
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
    """The generate call whose responses are trained on: by the policy's first training that has
    some, else by another role's, else the first of the graph. None: nothing generates."""
    trainings = graph.of_kind(CallKind.TRAIN)
    policy = policy_of(graph) if trainings else None
    ordered = sorted(trainings, key=lambda call: call.role != policy)
    candidates = [each for call in ordered for each in graph.responses.get(call.id, ())]
    candidates += [call.id for call in graph.of_kind(CallKind.GENERATE)]
    return next(iter(candidates), None)


def _naming_calls(graph: Graph, call: ModelCall) -> tuple[str, ...]:
    """The generate calls after which a call's metrics may be named. Those of a training are named
    after nothing but its role, whatever it is trained on."""
    return () if call.kind is CallKind.TRAIN else graph.responses.get(call.id, ())


def _site(call: ModelCall) -> _Site:
    region, _, site = call.id.rpartition("/")
    # What calls report is named after their role, but for responses, whoever generates.
    what = call.method if call.kind is CallKind.GENERATE else site.partition("#")[0]
    return _Site(_region_text(region), what)


def _site_of_totals(call: ModelCall) -> _Site:
    return _Site(_site(call).region, call.kind.value)


def _region_text(region: str) -> str:
    """A region in names: rounds of a step's first `flow.repeat` are a part of the step."""
    first, _, rest = region.partition("/")
    return rest if first == REPEAT else region


def _plain_calls(
    graph: Graph, site_of: Callable[[ModelCall], _Site], main: str | None
) -> Mapping[_Site, str]:
    """The generate call whose responses have the plain names at each site: that which is trained
    on, or where nothing is about it the first."""
    plain: dict[_Site, str] = {}
    for call in graph.calls:
        for each in _naming_calls(graph, call):
            if each == main or site_of(call) not in plain:
                plain[site_of(call)] = each
    return plain


def _labels(graph: Graph, main: str | None) -> Mapping[str, str]:
    """What each generate call but the main one is called in names: its role, its number from 2 on,
    and in front its region, where another one is called the same."""
    labels: dict[str, str] = {}
    for call in graph.of_kind(CallKind.GENERATE):
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
