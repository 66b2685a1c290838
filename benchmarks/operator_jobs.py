"""bench-operator: many jobs at once under one operator.

A control plane of its own with fake nodes, KubeRay and the operator as a process; heads are
pretended, and every driver runs by the clock. The operator's own share of a job's start is the time
from the job to its RayCluster, and from the last ready pod to the driver's submission; the rest is
the API server's, KubeRay's and the scheduler's. Kubernetes tells times to the second.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from command_line import make_parser, parse
from outcome import note, print_json, print_table
from tests.cluster.definition import define
from tests.cluster.kubectl import Kubectl
from tests.cluster.session import own_cluster
from tests.rlhf_operator.cluster import Team, a_team, small
from tests.rlhf_operator.fake_head import AutoRun, FakeHeads
from tests.waiting import wait_until

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_operator.clients.cached_kube import is_settled

GPUS_OF_A_NODE = 8
SUBMITTERS = 8
LIMIT_SECONDS = 1800.0
WRITES = ("POST", "PATCH", "DELETE")


@dataclass(frozen=True)
class Scraped:
    """The operator's own metrics at a moment."""

    text: str

    def values(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Every series of a metric: its labels and its value."""
        for line in self.text.splitlines():
            if re.match(rf"{name}[{{ ]", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                yield labels, float(line.rpartition(" ")[2])

    def calls(self) -> dict[str, float]:
        """Requests to Kubernetes by method."""
        series = self.values("rlhf_operator_api_calls_total")
        return {labels["method"]: value for labels, value in series}

    def reads(self) -> float:
        """Requests that ask, besides those that watch."""
        return self.calls().get("GET", 0.0)

    def writes(self) -> float:
        """Requests that change something."""
        return sum(self.calls().get(method, 0.0) for method in WRITES)

    def reconcile_seconds(self, share: float) -> float:
        """Return a quantile of the time of a reconcile, interpolated between bucket limits."""
        buckets: dict[float, float] = {}
        for labels, value in self.values("rlhf_operator_reconcile_seconds_bucket"):
            limit = float(labels["le"])
            buckets[limit] = buckets.get(limit, 0.0) + value
        wanted, low, below = share * max(buckets.values()), 0.0, 0.0
        for limit, count in sorted(buckets.items()):
            if count >= wanted:
                part = (wanted - below) / (count - below)
                return low if limit == float("inf") else low + part * (limit - low)
            low, below = limit, count
        raise AssertionError("the last bucket holds all")


def submit_all(team: Team, number: int) -> None:
    """That many jobs, as fast as the API server takes them."""
    kept = {"ttlSecondsAfterFinished": 3600}  # what is measured is read from what is left

    def submit(index: int) -> None:
        document = small(f"job-{index}", **kept)
        metadata = {**document["metadata"], "namespace": team.namespace}
        assert team.kube.create({**document, "metadata": metadata})

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(submit, range(number)))


def wait_for_all(team: Team, number: int) -> None:
    """Until every job has succeeded."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (done := num_succeeded(team)) < number:
        assert time.monotonic() < deadline, f"{done} of {number} jobs succeeded"
        note(f"{done} of {number} jobs have succeeded (load {os.getloadavg()[0]:.1f})")
        time.sleep(5.0)


def num_succeeded(team: Team) -> int:
    """Jobs that have; one that failed ends the benchmark."""
    phases = [
        job.get("status", {}).get("phase") for job in team.kube.list(Kind.JOB, team.namespace)
    ]
    assert "Failed" not in phases, "a job failed: the operator's log has why"
    return phases.count("Succeeded")


def peak_bytes(pid: int) -> int:
    """The most memory that the operator and its planners held."""
    family = [pid, *children(pid)]
    lines = [Path(f"/proc/{each}/status").read_text() for each in family]
    peaks = [re.search(r"VmHWM:\s+(\d+) kB", text) for text in lines]
    return sum(1024 * int(peak[1]) for peak in peaks if peak)


def resident_bytes(pid: int) -> int:
    """The memory that the operator holds now, without its planners."""
    held = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert held is not None
    return 1024 * int(held[1])


def children(pid: int) -> list[int]:
    """Its processes, of all its threads."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in file.read_text().split()]
    return found


def own_seconds(team: Team) -> list[float]:
    """The operator's own share of each job's start."""
    pods: dict[str, list[float]] = {}
    for pod in team.kube.list(Kind.POD, team.namespace, JOB_LABEL):
        pods.setdefault(pod["metadata"]["labels"][JOB_LABEL], []).append(ready_time(pod))
    clusters = {
        each["metadata"]["labels"][JOB_LABEL]: created(each)
        for each in team.kube.list(Kind.CLUSTER, team.namespace, JOB_LABEL)
    }
    shares = []
    for job in team.kube.list(Kind.JOB, team.namespace):
        name = job["metadata"]["name"]
        head = team.heads.head(team.namespace, f"{name}-1")
        assert head.submitted == [f"{name}-1-0"], "each driver is submitted once"
        submitted = head.submitted_at[f"{name}-1-0"] - max(pods[name])
        shares.append(clusters[name] - created(job) + submitted)
    return shares


def created(object: Manifest) -> float:
    """Unix time, to the second."""
    return seconds_of(object["metadata"]["creationTimestamp"])


def ready_time(pod: Manifest) -> float:
    """When it became ready."""
    conditions: Sequence[Mapping[str, Any]] = pod["status"]["conditions"]
    (ready,) = (each for each in conditions if each["type"] == "Ready")
    return seconds_of(ready["lastTransitionTime"])


def seconds_of(text: str) -> float:
    """Unix time of one of Kubernetes' times."""
    return datetime.fromisoformat(text).timestamp()


def measure(team: Team, number: int, idle_seconds: float) -> dict[str, float]:
    """Run all jobs; what it took."""
    begin = time.monotonic()
    submit_all(team, number)
    submitted = time.monotonic() - begin
    wait_for_all(team, number)
    total = time.monotonic() - begin
    assert team.operator.process is not None
    busy = Scraped(team.operator.get("/metrics")[1])
    note(f"watching settled jobs for {idle_seconds:g} s")
    time.sleep(idle_seconds)
    before = Scraped(team.operator.get("/metrics")[1])
    time.sleep(idle_seconds)
    after = Scraped(team.operator.get("/metrics")[1])
    shares = own_seconds(team)
    return {
        "seconds until all were submitted": submitted,
        "seconds until all succeeded": total,
        "reconcile a job, p50 ms": 1000 * busy.reconcile_seconds(0.5),
        "reconcile a job, p99 ms": 1000 * busy.reconcile_seconds(0.99),
        "API calls per job": sum(busy.calls().values()) / number,
        "of them writes": busy.writes() / number,
        "own share of a start, mean s": statistics.mean(shares),
        "own share of a start, longest s": max(shares),
        "peak memory MiB": peak_bytes(team.operator.process.pid) / 2**20,
        f"writes in {idle_seconds:g} idle seconds": after.writes() - before.writes(),
        "reads per ended job and hour": hourly(
            after.reads() - before.reads(), idle_seconds, number
        ),
    }


def hourly(reads: float, seconds: float, jobs: int) -> float:
    """Of so many reads for so many jobs, those per job and hour."""
    return reads * 3600.0 / seconds / jobs


def per_thousand(team: Team, number: int, rest_seconds: float) -> float:
    """What an operator that is started anew holds for so many jobs that have ended: copies of one
    that has run."""
    place = f"--namespace={team.namespace}"
    team.kubectl("delete", "rayclusters", "--all", place, "--wait=false")
    wait_until(
        lambda: not (team.kube.list(Kind.CLUSTER, team.namespace) or unfinished(team)),
        LIMIT_SECONDS,
        "jobs that hold nothing",
    )
    ended = team.kube.list(Kind.JOB, team.namespace)
    team.operator.stop()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda index: copy_ended(team, ended[0], index), range(number)))
    held = held_when_started(team, rest_seconds)
    team.kubectl("delete", "rlhfjobs", "--all", place, "--wait=false")
    wait_until(lambda: not team.kube.list(Kind.JOB, team.namespace), LIMIT_SECONDS, "no jobs")
    empty = held_when_started(team, rest_seconds)
    team.operator.start()
    return (held - empty) / 2**20 * 1000 / (number + len(ended))


def copy_ended(team: Team, job: Manifest, index: int) -> None:
    """Another job that has run just so."""
    name = f"ended-{index}"
    metadata = {"name": name, "namespace": team.namespace}
    head = {**Kind.JOB.header, "metadata": metadata}
    team.kube.create({**head, "spec": job["spec"]})
    team.kube.apply_status({**head, "status": job["status"]})


def held_when_started(team: Team, rest_seconds: float) -> int:
    """The memory of an operator that is started for this, in bytes."""
    team.operator.start()
    time.sleep(rest_seconds)
    assert team.operator.process is not None
    held = resident_bytes(team.operator.process.pid)
    team.operator.stop()
    return held


def unfinished(team: Team) -> list[Manifest]:
    """Jobs that the operator has still to do something about."""
    jobs = team.kube.list(Kind.JOB, team.namespace)
    return [job for job in jobs if not is_settled(job)]


def measure_waits(team: Team, number: int, rest_seconds: float, seconds: float) -> dict[str, float]:
    """Reads per job and hour of jobs that wait for pods, and of jobs that train."""
    found = {}
    pool = {"name": "gpu", "nodes": 1, "devicesPerNode": 64, "gpu": "A100-80G"}
    kinds = {
        "waiting": ("Provisioning", {"resources": {"nodePools": [pool]}}),
        "running": ("Running", {}),
    }
    for kind, (phase, spec) in kinds.items():
        for index in range(number):
            team.submit(small(f"{kind}-{index}", **spec))
        for index in range(number):
            team.wait_for(phase, f"{kind}-{index}", LIMIT_SECONDS)
        time.sleep(rest_seconds)
        note(f"watching {number} {kind} jobs for {seconds:g} s")
        before = Scraped(team.operator.get("/metrics")[1])
        time.sleep(seconds)
        after = Scraped(team.operator.get("/metrics")[1])
        reads = after.reads() - before.reads()
        found[f"reads per {kind} job and hour"] = hourly(reads, seconds, number)
        team.kubectl("delete", "rlhfjobs", "--all", f"--namespace={team.namespace}", "--wait=false")
        wait_until(lambda: not team.kube.list(Kind.JOB, team.namespace), LIMIT_SECONDS, "no jobs")
    return found


def main() -> None:
    """Read the command line, measure, report."""
    parser = make_parser(__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="submitted at once (default 200)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a driver (default 30)")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds settled (default 20)")
    parser.add_argument(
        "--waiting",
        type=int,
        default=20,
        help="jobs whose reads are counted (default 20; 0: none, nor memory)",
    )
    parser.add_argument(
        "--ended", type=int, default=1000, help="jobs whose memory is counted (default 1000)"
    )
    parser.add_argument(
        "--rest", type=float, default=15.0, help="seconds until an operator rests (default 15)"
    )
    parser.add_argument(
        "--watch", type=float, default=60.0, help="seconds waiting and running (default 60)"
    )
    options = parse(parser, jobs=2, seconds=2.0, idle=1.0, waiting=1, ended=2, rest=1.0, watch=1.0)
    nodes = 1 + -(-options.jobs // GPUS_OF_A_NODE)
    note(f"starting a control plane with {nodes} fake nodes")
    with (
        tempfile.TemporaryDirectory(prefix="bench-operator-") as scratch,
        own_cluster("benchmark", "--fake-nodes", str(nodes)) as cluster,
    ):
        folder = Path(scratch)
        kubectl = Kubectl(cluster.state / "bin" / "kubectl", cluster.kubeconfig, folder / "cache")
        define(kubectl)
        heads = FakeHeads(AutoRun(10, options.seconds), clock=time.time)
        with a_team(kubectl, folder, heads, pollSeconds=5.0, logLevel="warning") as team:
            measured = measure(team, options.jobs, options.idle)
            if options.waiting:
                measured["MiB per 1,000 ended jobs"] = per_thousand(
                    team, options.ended, options.rest
                )
        heads = FakeHeads(AutoRun(10, LIMIT_SECONDS), clock=time.time)
        if options.waiting:
            with a_team(kubectl, folder, heads, pollSeconds=5.0, logLevel="warning") as team:
                measured |= measure_waits(team, options.waiting, options.rest, options.watch)
        print_table(["operator", f"{options.jobs} jobs"], [[*row] for row in measured.items()])
    print_json(
        "operator",
        smallest=options.smallest,
        jobs=options.jobs,
        driver_seconds=options.seconds,
        measured=measured,
    )


if __name__ == "__main__":
    main()
