"""bench-fleet: an operator that starts in a cluster with many ended and many live jobs.

The live jobs train on fake heads and fake nodes. Measured are the time from the operator's start
until it has looked at every live job, its memory, and its reads while the jobs train.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from command_line import make_parser, parse
from operator_jobs import (
    GPUS_OF_A_NODE,
    LIMIT_SECONDS,
    SUBMITTERS,
    MetricsPage,
    copy_ended,
    hourly,
    peak_bytes,
)
from outcome import note, print_json, print_table
from tests.cluster.definition import define
from tests.cluster.kubectl import Kubectl
from tests.cluster.session import own_cluster
from tests.rlhf_operator.cluster import Team, a_team, small
from tests.rlhf_operator.fake_head import AutoRun, FakeHeads
from tests.rlhf_operator.operator_process import PROGRAM
from tests.waiting import wait_until

from rlhf_kube.errors import Unreachable

API_MEMORY = "8GiB"
"""Of the API server, which keeps all jobs: with less it does nothing but collect garbage."""
LOOK_SECONDS = 300.0
"""Limit for the operator's first look at all jobs."""


def create_ended(team: Team, number: int) -> None:
    """Create ended jobs as copies of one that has run."""
    # No node has its devices, so it ends by its deadline.
    team.submit(small("first", startDeadlineSeconds=1, resources={"nodePools": [no_node()]}))
    team.wait_for("Failed", "first", LIMIT_SECONDS)
    wait_until(lambda: "cluster" not in team.job("first")["status"], LIMIT_SECONDS, "a settled job")
    first = team.job("first")
    # It would look at each copy between its creation and its status, and run it.
    team.operator.stop()
    # Several at once: the API server writes each to its disk before it answers.
    with ThreadPoolExecutor(SUBMITTERS) as threads:
        for index, _ in enumerate(threads.map(lambda i: copy_ended(team, first, i), range(number))):
            if index % 1000 == 999:
                note(f"{index + 1} of {number} ended jobs are there")
    team.operator.start()


def no_node() -> dict[str, object]:
    """A pool that no fake node can serve."""
    return {"name": "gpu", "nodes": 1, "devicesPerNode": 64, "gpu": "A100-80G"}


def create_live(team: Team, number: int) -> None:
    """Create jobs that train, and wait until all of them do."""

    def submit(index: int) -> None:
        document = small(f"live-{index}")
        metadata = {**document["metadata"], "namespace": team.namespace}
        assert team.kube.create({**document, "metadata": metadata})

    with ThreadPoolExecutor(SUBMITTERS) as threads:
        list(threads.map(submit, range(number)))
    deadline = time.monotonic() + LIMIT_SECONDS
    # Counted by the operator: lists of all jobs would compete with it for the API server.
    running = 0.0
    while running < number:
        time.sleep(5.0)
        page = MetricsPage(team.operator.get("/metrics")[1])
        phases = {labels["phase"]: value for labels, value in page.values("rlhf_operator_jobs")}
        running = phases.get("Running", 0.0)
        note(f"{running:.0f} of {number} jobs train (load {os.getloadavg()[0]:.1f})")
        assert time.monotonic() < deadline, phases


def first_look(team: Team, number: int) -> float:
    """Start the operator again; returns seconds until it has looked at all live jobs."""
    # Nothing but Kubernetes knows the jobs then, as after the loss of the operator's node.
    team.operator.stop()
    begin = time.monotonic()
    team.operator.start()

    # Readiness is not enough: it means that the watches have begun.
    def has_looked() -> bool:
        # The status of a job that was looked at is in the metrics.
        page = MetricsPage(team.operator.get("/metrics")[1])
        return sum(1 for _ in page.values("rlhf_job_step")) >= number

    wait_until(has_looked, LOOK_SECONDS, "a look at every job")
    return time.monotonic() - begin


def measure(team: Team, ended: int, live: int, rest: float, watch: float) -> dict[str, float]:
    """Return figures by name.

    Args:
        ended: ended jobs.
        live: jobs that train.
        rest: seconds between the first look and the count of reads.
        watch: seconds of counting reads.
    """
    # Ended ones first: their copies need an operator that stands still, live ones need it.
    create_ended(team, ended)
    create_live(team, live)
    looked = first_look(team, live)
    time.sleep(rest)
    note(f"watching {live} live jobs for {watch:g} s")
    before = MetricsPage(team.operator.get("/metrics")[1])
    time.sleep(watch)
    begin = time.monotonic()
    after = MetricsPage(team.operator.get("/metrics")[1])
    scrape = time.monotonic() - begin
    assert team.operator.process is not None
    # A poll that comes late shows in the age of what is known of the job.
    ages = [
        time.time() - value for _, value in after.values("rlhf_job_last_report_timestamp_seconds")
    ]
    return {
        "seconds until all were looked at": looked,
        "peak memory MiB": peak_bytes(team.operator.process.pid) / 2**20,
        "reads per live job and hour": hourly(after.reads() - before.reads(), watch, live),
        "writes per live job and hour": hourly(after.writes() - before.writes(), watch, live),
        "oldest report s": max(ages),
        "seconds of a scrape": scrape,
        "series": float(sum(1 for line in after.text.splitlines() if line[:1] not in "#")),
    }


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--ended", type=int, default=10_000, help="ended jobs (default 10000)")
    parser.add_argument("--live", type=int, default=1000, help="jobs that train (default 1000)")
    parser.add_argument(
        "--rest", type=float, default=60.0, help="seconds before reads count (default 60)"
    )
    parser.add_argument(
        "--watch", type=float, default=300.0, help="seconds of counting reads (default 300)"
    )
    options = parse(parser, ended=20, live=2, rest=1.0, watch=2.0)
    # One GPU per live job, and one node more.
    nodes = 1 + -(-options.live // GPUS_OF_A_NODE)
    note(f"starting a control plane with {nodes} fake nodes")
    # A cluster of its own: thousands of jobs would be in the way of anything else.
    with (
        tempfile.TemporaryDirectory(prefix="bench-fleet-") as scratch,
        own_cluster(
            "benchmark", "--fake-nodes", str(nodes), DEVCLUSTER_API_MEMORY=API_MEMORY
        ) as cluster,
    ):
        folder = Path(scratch)
        kubectl = Kubectl(cluster.state / "bin" / "kubectl", cluster.kubeconfig, folder / "cache")
        define(kubectl)
        # Drivers that do not end while reads are counted.
        heads = FakeHeads(AutoRun(100, 2 * LIMIT_SECONDS), clock=time.time)
        with a_team(
            kubectl, folder, heads, program=PROGRAM, pollSeconds=5.0, logLevel="warning"
        ) as team:
            measured = measure(team, options.ended, options.live, options.rest, options.watch)
            # Before the jobs are deleted, which takes minutes.
            title = f"{options.ended} ended and {options.live} live jobs"
            print_table(["operator", title], [[*row] for row in measured.items()])
            with suppress(Unreachable):  # so that the namespace goes quickly
                team.kubectl("delete", "rlhfjobs", "--all", f"-n={team.namespace}", "--wait=false")
    print_json(
        "fleet",
        smallest=options.smallest,
        ended=options.ended,
        live=options.live,
        measured=measured,
    )


if __name__ == "__main__":
    main()
