"""bench-operator: many jobs at once under one operator.

Starts a control plane with fake nodes, KubeRay and the operator as a process. Heads are fakes; a
driver succeeds after a fixed time. The operator's own share of a job's start is the time from the
job to its RayCluster, and from the last ready pod to the driver's submission; the rest is the API
server's, KubeRay's and the scheduler's. Kubernetes' timestamps have a resolution of a second.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
from tests.rlhf_operator.operator_process import PROGRAM
from tests.waiting import wait_until

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.errors import Unreachable
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_operator.clients.cached_kube import is_settled

GPUS_OF_A_NODE = 8
SUBMITTERS = 8
LIMIT_SECONDS = 1800.0
WRITES = ("POST", "PATCH", "DELETE")


@dataclass(frozen=True)
class MetricsPage:
    """The operator's own metrics at one moment."""

    text: str

    def values(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels and value of every series of a metric."""
        for line in self.text.splitlines():
            if re.match(rf"{name}[{{ ]", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                yield labels, float(line.rpartition(" ")[2])

    def calls(self) -> dict[str, float]:
        """Requests to Kubernetes by method."""
        series = self.values("rlhf_operator_api_calls_total")
        return {labels["method"]: value for labels, value in series}

    def reads(self) -> float:
        """Requests that read, without watches."""
        return self.calls().get("GET", 0.0)

    def writes(self) -> float:
        """Requests that change an object."""
        return sum(self.calls().get(method, 0.0) for method in WRITES)

    def reconcile_seconds(self, share: float) -> float:
        """Return a quantile of the time of a reconcile, interpolated between bucket limits."""
        buckets: dict[float, float] = {}
        for labels, value in self.values("rlhf_operator_reconcile_seconds_bucket"):
            limit = float(labels["le"])
            buckets[limit] = buckets.get(limit, 0.0) + value
        target, low, below = share * max(buckets.values()), 0.0, 0.0
        for limit, count in sorted(buckets.items()):
            if count >= target:
                part = (target - below) / (count - below)
                # The last bucket has no upper limit: its lower one is all that is certain.
                return low if limit == float("inf") else low + part * (limit - low)
            low, below = limit, count
        raise AssertionError("the last bucket counts all reconciles")


def submit_all(team: Team, number: int) -> None:
    """Create jobs as fast as the API server accepts them."""
    # Times are read from pods and clusters after the end, so these must not be deleted yet.
    options = {"clusterTTLSeconds": 3600}

    def submit(index: int) -> None:
        document = small(f"job-{index}", **options)
        metadata = {**document["metadata"], "namespace": team.namespace}
        assert team.kube.create({**document, "metadata": metadata})

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(submit, range(number)))


def wait_for_all(team: Team, number: int) -> None:
    """Wait until all jobs have succeeded."""
    deadline = time.monotonic() + LIMIT_SECONDS
    done = 0
    while done < number:
        # A busy API server does not answer every list in time.
        with suppress(Unreachable):
            done = num_succeeded(team)
        assert time.monotonic() < deadline, f"{done} of {number} jobs succeeded"
        note(f"{done} of {number} jobs have succeeded (load {os.getloadavg()[0]:.1f})")
        time.sleep(5.0)


def num_succeeded(team: Team) -> int:
    """Count succeeded jobs.

    Raises:
        AssertionError: a job failed.
    """
    phases = [
        job.get("status", {}).get("phase") for job in team.kube.list(Kind.JOB, team.namespace)
    ]
    assert "Failed" not in phases, "a job failed: the operator's log has why"
    return phases.count("Succeeded")


def peak_bytes(pid: int) -> int:
    """Peak memory of the operator and its planners."""
    pids = [pid, *children(pid)]
    texts = [Path(f"/proc/{process}/status").read_text() for process in pids]
    # The kernel's own high-water mark: no sampling misses a peak.
    peaks = [re.search(r"VmHWM:\s+(\d+) kB", text) for text in texts]
    return sum(1024 * int(peak[1]) for peak in peaks if peak)


def resident_bytes(pid: int) -> int:
    """Current memory of the operator, without its planners."""
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert resident is not None
    return 1024 * int(resident[1])


def children(pid: int) -> list[int]:
    """Child processes."""
    pids = []
    # The kernel lists children by the thread that started them.
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        pids += [int(word) for word in file.read_text().split()]
    return pids


def own_seconds(team: Team) -> list[float]:
    """Seconds of every job's start that the operator itself takes."""
    pods: dict[str, list[float]] = {}
    for pod in team.kube.list(Kind.POD, team.namespace, JOB_LABEL):
        pods.setdefault(pod["metadata"]["labels"][JOB_LABEL], []).append(ready_time(pod))
    clusters = {
        cluster["metadata"]["labels"][JOB_LABEL]: created(cluster)
        for cluster in team.kube.list(Kind.CLUSTER, team.namespace, JOB_LABEL)
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
    """Creation time in Unix seconds."""
    return seconds_of(object["metadata"]["creationTimestamp"])


def ready_time(pod: Manifest) -> float:
    """Time in Unix seconds at which a pod became ready."""
    conditions: Sequence[Mapping[str, Any]] = pod["status"]["conditions"]
    (ready,) = (condition for condition in conditions if condition["type"] == "Ready")
    return seconds_of(ready["lastTransitionTime"])


def seconds_of(text: str) -> float:
    """Unix seconds of a Kubernetes timestamp."""
    return datetime.fromisoformat(text).timestamp()


def measure(team: Team, number: int, idle_seconds: float) -> dict[str, float]:
    """Run jobs to their end; returns figures by name."""
    begin = time.monotonic()
    submit_all(team, number)
    submitted = time.monotonic() - begin
    wait_for_all(team, number)
    total = time.monotonic() - begin
    assert team.operator.process is not None
    busy = MetricsPage(team.operator.get("/metrics")[1])
    note(f"watching settled jobs for {idle_seconds:g} s")
    time.sleep(idle_seconds)  # last writes of the last jobs
    before = MetricsPage(team.operator.get("/metrics")[1])
    time.sleep(idle_seconds)
    after = MetricsPage(team.operator.get("/metrics")[1])
    shares = own_seconds(team)
    return {
        "seconds until all were submitted": submitted,
        "seconds until all succeeded": total,
        "reconcile a job, p50 ms": 1000 * busy.reconcile_seconds(0.5),
        "reconcile a job, p99 ms": 1000 * busy.reconcile_seconds(0.99),
        "API calls per job": sum(busy.calls().values()) / number,
        "API writes per job": busy.writes() / number,
        "own share of a start, mean s": statistics.mean(shares),
        "own share of a start, longest s": max(shares),
        "peak memory MiB": peak_bytes(team.operator.process.pid) / 2**20,
        f"writes in {idle_seconds:g} idle seconds": after.writes() - before.writes(),
        "reads per ended job and hour": hourly(
            after.reads() - before.reads(), idle_seconds, number
        ),
    }


def hourly(reads: float, seconds: float, jobs: int) -> float:
    """Reads per job and hour."""
    return reads * 3600.0 / seconds / jobs


def per_thousand(team: Team, number: int, rest_seconds: float) -> float:
    """MiB that 1,000 ended jobs add to the memory of a restarted operator.

    Args:
        number: ended jobs to create, as copies of one that has run.
        rest_seconds: from the start of an operator until it rests.
    """
    namespace = f"--namespace={team.namespace}"
    team.kubectl("delete", "rayclusters", "--all", namespace, "--wait=false")
    wait_until(
        lambda: not (team.kube.list(Kind.CLUSTER, team.namespace) or unfinished(team)),
        LIMIT_SECONDS,
        "jobs without objects",
    )
    ended = team.kube.list(Kind.JOB, team.namespace)
    # Restarted: memory of the runs themselves would hide that of the ended jobs.
    team.operator.stop()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda index: copy_ended(team, ended[0], index), range(number)))
    with_jobs = bytes_after_start(team, rest_seconds)
    team.kubectl("delete", "rlhfjobs", "--all", namespace, "--wait=false")
    wait_until(lambda: not team.kube.list(Kind.JOB, team.namespace), LIMIT_SECONDS, "no jobs")
    without_jobs = bytes_after_start(team, rest_seconds)
    team.operator.start()
    return (with_jobs - without_jobs) / 2**20 * 1000 / (number + len(ended))


def copy_ended(team: Team, job: Manifest, index: int) -> None:
    """Create another job with spec and status of `job`."""
    name = f"ended-{index}"
    metadata = {"name": name, "namespace": team.namespace}
    header = {**Kind.JOB.header, "metadata": metadata}
    team.kube.create({**header, "spec": job["spec"]})
    # The API server ignores the status of a created object.
    team.kube.apply_status({**header, "status": job["status"]})


def bytes_after_start(team: Team, rest_seconds: float) -> int:
    """Start an operator, measure its memory, stop it."""
    team.operator.start()
    time.sleep(rest_seconds)
    assert team.operator.process is not None
    resident = resident_bytes(team.operator.process.pid)
    team.operator.stop()
    return resident


def unfinished(team: Team) -> list[Manifest]:
    """Jobs that are not settled yet."""
    jobs = team.kube.list(Kind.JOB, team.namespace)
    return [job for job in jobs if not is_settled(job)]


def measure_waits(team: Team, number: int, rest_seconds: float, seconds: float) -> dict[str, float]:
    """Reads per job and hour of jobs that wait for pods, and of jobs that train."""
    reads_by_kind = {}
    # No fake node has 64 devices, so these pods wait for ever.
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
        before = MetricsPage(team.operator.get("/metrics")[1])
        time.sleep(seconds)
        after = MetricsPage(team.operator.get("/metrics")[1])
        reads = after.reads() - before.reads()
        reads_by_kind[f"reads per {kind} job and hour"] = hourly(reads, seconds, number)
        team.kubectl("delete", "rlhfjobs", "--all", f"--namespace={team.namespace}", "--wait=false")
        wait_until(lambda: not team.kube.list(Kind.JOB, team.namespace), LIMIT_SECONDS, "no jobs")
    return reads_by_kind


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="submitted at once (default 200)")
    parser.add_argument("--seconds", type=float, default=30.0, help="time of a driver (default 30)")
    parser.add_argument(
        "--idle", type=float, default=20.0, help="seconds of idle measurements (default 20)"
    )
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
        "--rest", type=float, default=15.0, help="seconds after an operator's start (default 15)"
    )
    parser.add_argument(
        "--watch", type=float, default=60.0, help="seconds of counting reads (default 60)"
    )
    options = parse(parser, jobs=2, seconds=2.0, idle=1.0, waiting=1, ended=2, rest=1.0, watch=1.0)
    # One GPU per job, and one node more.
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
        with a_team(
            kubectl, folder, heads, program=PROGRAM, pollSeconds=5.0, logLevel="warning"
        ) as team:
            measured = measure(team, options.jobs, options.idle)
            if options.waiting:
                measured["MiB per 1,000 ended jobs"] = per_thousand(
                    team, options.ended, options.rest
                )
        # Drivers that do not end while reads of running jobs are counted.
        heads = FakeHeads(AutoRun(10, LIMIT_SECONDS), clock=time.time)
        if options.waiting:
            with a_team(
                kubectl, folder, heads, program=PROGRAM, pollSeconds=5.0, logLevel="warning"
            ) as team:
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
