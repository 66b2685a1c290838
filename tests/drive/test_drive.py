"""`rlhf drive` in a Ray cluster, submitted, stopped and asked as the operator does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.report import StatusReport
from rlhf_cli.packages.lock import read_lock

from ..rlhf_cli.packages.wheels import Index
from ..runs.cli import LIMIT_SECONDS, RLHF, USER_CODE
from ..runs.manifests import example
from ..runs.records import records, repeated
from ..scoring_service import scoring_service
from ..waiting import wait_until
from .ray_cluster import ENDED, RayCluster, ray_cluster

pytestmark = pytest.mark.ray

NODES = 2
"""Each with one rank."""
CPUS = 3
"""Of a node: its rank and a host of rewards, on the first also that of the data."""
ON_A_CLUSTER = {
    "code": {"configMap": {"name": "verifiers"}, "requirements": ["tiny-words"]},
    "resources": {
        "nodePools": [
            {
                "name": "cpu",
                "nodes": NODES,
                "device": "CPU",
                "devicesPerNode": 1,
                "memoryPerDevice": "4Gi",
            }
        ]
    },
    "schedule": {"warmStart": None},
    "checkpoint": {"everySteps": 4},
    "failurePolicy": {"backoffSeconds": 0},
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """The index of the job's packages."""
    made = Index(tmp_path_factory.mktemp("index"))
    made.add_words("1.0")
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, index: Index) -> Iterator[RayCluster]:
    """A head; the tests bring the workers."""
    with pytest.MonkeyPatch.context() as variables:
        index.used_by(variables)
        with ray_cluster(tmp_path_factory.mktemp("cluster")) as made:
            yield made


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Address of a service that never gives the same score twice."""
    numbers = count()
    with scoring_service(lambda sample: next(numbers)) as url:
        yield url


def submit(cluster: RayCluster, restart: int, steps: int, service: str) -> str:
    """Submit the driver of the job as far as so many steps; its run is in `run`."""
    manifest = cluster.folder / f"job-{restart}.yaml"
    digits = {"name": "digits", "function": {"entrypoint": "packaged:digits"}}
    graded = {"name": "grade", "weight": 0.0, "http": {"url": service}}
    sections = {"schedule": {"steps": steps}, "rewards": [digits, graded]}
    example("01", manifest, ON_A_CLUSTER, sections)
    text = manifest.read_text().replace(f"    local: {USER_CODE}\n", "")
    manifest.write_text(text)
    return submit_file(cluster, restart, manifest)


def submit_file(cluster: RayCluster, restart: int, manifest: Path) -> str:
    submission = f"sort-grpo-1-{restart}"
    words = ["drive", manifest, "--output", cluster.folder / "run", "--submission-id", submission]
    words += ["--report-port", cluster.report_port, "--code", USER_CODE]
    cluster.submit(submission, [RLHF, *words])
    return submission


def wait_for_report(
    cluster: RayCluster, submission: str, what: str, holds: Callable[[StatusReport], bool]
) -> StatusReport:
    """Poll until the driver reports something; reports come in order."""
    seen: list[StatusReport] = []

    def look() -> bool:
        report = cluster.report()
        if isinstance(report, StatusReport) and report.submission_id == submission:
            assert not seen or report.sequence >= seen[-1].sequence
            seen.append(report)
            assert holds(report) or not report.final, report
            return holds(report)
        assert cluster.state(submission)["status"] not in ENDED, cluster.log(submission)
        return False

    wait_until(look, LIMIT_SECONDS, f"{what}; {seen[-1:]}\n{cluster.log(submission)}")
    return seen[-1]


def has_saved(step: int) -> Callable[[StatusReport], bool]:
    return lambda report: report.checkpoint is not None and report.checkpoint.step >= step


def end_of(cluster: RayCluster, submission: str) -> StatusReport:
    """Take the final report as the operator does, and see it in the log, too."""
    final = wait_for_report(cluster, submission, "the end", lambda report: report.final)
    assert cluster.acknowledge(final) == 204
    cluster.wait_for_end(submission)
    assert cluster.last_report(submission) == final
    return final


def assert_kept_packages(run: Path) -> None:
    """The run has the packages that it began with, and no others."""
    lock = read_lock(run)
    assert lock is not None and [package.pin for package in lock.packages] == ["tiny-words==1.0"]
    assert {entry.name for entry in (run / "packages").iterdir()} == {lock.digest, ".lock"}


def assert_exact_steps(run: Path, steps: int) -> None:
    """The run has all steps; those that ran again have the numbers of their first time."""
    trained = [record["step"] for record in records(run, "step")]
    assert sorted(set(trained)) == list(range(1, steps + 1))
    steps_again = repeated(run)
    assert steps_again, "a checkpoint is complete only after the next step"
    for runs in steps_again.values():
        assert "reward/grade" in runs[0] and all(run == runs[0] for run in runs), runs


def test_a_job_is_stopped_and_goes_on_and_survives_the_loss_of_a_worker(
    cluster: RayCluster, service: str, index: Index
) -> None:
    first = submit(cluster, 0, 5000, service)
    waiting = wait_for_report(
        cluster, first, "a wait for nodes", lambda report: "waiting for nodes" in report.message
    )
    assert "0 of 2 nodes with 3 CPU" in waiting.message and waiting.step == 0
    assert cluster.report(token="guess") == 401

    lost, _ = [cluster.start_worker(CPUS) for _ in range(NODES)]
    training = wait_for_report(cluster, first, "a checkpoint", has_saved(4))
    assert (training.phase, training.total_steps) == ("Train", 5000)
    assert training.metrics["reward/mean"] > 0 and training.tokens_per_second
    assert training.seconds_remaining and training.exit_code is None

    cluster.stop(first)
    stopped = end_of(cluster, first)
    assert (stopped.exit_code, stopped.reason) == (ExitCode.INTERRUPTED, "Interrupted")
    assert stopped.checkpoint is not None and stopped.checkpoint.step == stopped.step
    assert Path(stopped.checkpoint.path, "checkpoint.json").is_file(), "what was reached is saved"
    assert cluster.state(first)["status"] == "STOPPED"

    steps = stopped.step + 30
    index.add_words("2.0")
    second = submit(cluster, 1, steps, service)
    wait_for_report(cluster, second, "a new checkpoint", has_saved(stopped.step + 4))
    lost.kill_raylet()
    restarting = wait_for_report(
        cluster, second, "a restart", lambda report: report.reason == "NodeLost"
    )
    assert "nodes of the workers are lost" in restarting.message and "died" in restarting.message
    assert (restarting.restarts, restarting.disruptions) == (1, 1)
    assert restarting.step >= stopped.step
    cluster.start_worker(CPUS)
    finished = end_of(cluster, second)
    log = cluster.log(second)
    assert (finished.exit_code, finished.reason) == (ExitCode.DONE, None), log
    assert (finished.step, finished.percent) == (steps, 100)
    state = cluster.state(second)
    assert (state["status"], state["driver_exit_code"]) == ("SUCCEEDED", 0)
    assert f"going on from the checkpoint of step {stopped.step}" in log
    assert log.count(", after NodeLost: ") == 1 and cluster.token not in log

    run = cluster.folder / "run"
    assert "installed 1 package of" in cluster.log(first) and "installed" not in log
    assert_kept_packages(run)
    assert (run / "model" / "model.safetensors").is_file()
    address = cluster.address
    for rank in range(NODES):
        log = (run / "logs" / f"rank-{rank}.log").read_text()
        assert f"listens at {address}" in log, "other nodes can reach it"
    assert {"reward-0.log", "reward-1.log"} <= {log.name for log in (run / "logs").iterdir()}
    last = json.loads((run / "timeline.jsonl").read_text().splitlines()[-1])
    scored = {span[0] for span in last["spans"] if span[2] == "score"}
    assert scored == {"reward 0", "reward 1"}, "each node scores what it has generated"
    assert_exact_steps(run, steps)
    lost.assert_without_actors()


def test_a_manifest_that_cannot_be_used_is_told_in_the_final_report(cluster: RayCluster) -> None:
    manifest = cluster.folder / "bad.yaml"
    manifest.write_text("apiVersion: rlhf-operator.dev/v1alpha1\nkind: RLHFJob\n")
    submission = submit_file(cluster, 7, manifest)
    final = end_of(cluster, submission)
    assert (final.exit_code, final.reason) == (ExitCode.MANIFEST, "InvalidManifest")
    assert "metadata" in final.message
    state = cluster.state(submission)
    assert (state["status"], state["driver_exit_code"]) == ("FAILED", 2)
