"""How early and how late operations can be, and how long a schedule takes at least. Pure.

Micro-batches of a pipeline are alike, so it loses nothing to run them through each stage in their
order: what starts as the n-th forward pass of a stage has behind it n forward passes of the stage
before, whichever micro-batches they are of, and the same goes for backward passes. So everything
here, and every order that is searched, has them in their order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from rlhf_flow.planning.fused_pipelines.pipeline import Workload
from rlhf_flow.planning.fused_pipelines.schedule import INFINITY


def heads(workload: Workload) -> list[float]:
    """Of each operation: seconds before it that nothing can avoid, from the start on. Those of its
    micro-batch so far, and of the micro-batches before it in the same stage and direction."""
    found = [0.0] * len(workload.seconds)
    for number, earlier in enumerate(_in_stage_before(workload)):
        for source in (workload.before[number], earlier):
            if source >= 0:
                found[number] = max(found[number], found[source] + workload.seconds[source])
    return found


def tails(workload: Workload) -> list[float]:
    """Of each operation: seconds after it that nothing can avoid, to the end."""
    found = [0.0] * len(workload.seconds)
    earlier = _in_stage_before(workload)
    for number in reversed(range(len(found))):
        after_source = found[number] + workload.seconds[number]
        for source in (workload.before[number], earlier[number]):
            if source >= 0:
                found[source] = max(found[source], after_source)
    return found


def _in_stage_before(workload: Workload) -> list[int]:
    """Of each operation: that of the micro-batch before, in the same stage and direction; -1 for
    none. It has a smaller number."""
    return [
        -1 if op.micro_batch == 0 else number - 2 * workload.pipelines[op.pipeline].num_stages
        for number, op in enumerate(workload.operations)
    ]


def lower_bound(workload: Workload) -> float:
    """Seconds that any schedule takes at least, with or without a limit on activations.

    For each device alone, as if all others could do any number of things at once: when its
    operations come in no earlier than their heads, and each is followed by its tail, then working
    always on the one with the longest tail, preemptively, is best. That counts a device's work, the
    ramps before and after it, and gaps in between which it has nothing to fill with.

    Source: Jackson's preemptive schedule, as in Carlier, The one-machine sequencing problem (1982).
    RLHFuse's published bound counts the work and the shortest ramps.
    """
    early, late = heads(workload), tails(workload)
    jobs: list[list[tuple[float, float, float]]] = [[] for _ in range(workload.num_devices)]
    for number, device in enumerate(workload.devices):
        jobs[device].append((early[number], workload.seconds[number], late[number]))
    return max(one_device_bound(each) for each in jobs)


def one_device_bound(jobs: Iterable[tuple[float, float, float]]) -> float:
    """Seconds until all of some jobs have ended and what follows them, on one device, preemptively.

    Args:
        jobs: of each when it comes, how long it takes, and how much follows it, in seconds.
    """
    coming: Sequence[tuple[float, float, float]] = sorted(jobs)
    waiting: list[list[float]] = []
    now, latest, index = 0.0, 0.0, 0
    while index < len(coming) or waiting:
        if not waiting:
            now = max(now, coming[index][0])
        while index < len(coming) and coming[index][0] <= now:
            heapq.heappush(waiting, [-coming[index][2], coming[index][1]])
            index += 1
        following = coming[index][0] if index < len(coming) else INFINITY
        tail, left = waiting[0]
        if now + left <= following:
            now += left
            latest = max(latest, now - tail)
            heapq.heappop(waiting)
        else:
            waiting[0][1] -= following - now
            now = following
    return latest
