"""Two releases of the operator in one cluster do each other's jobs no harm."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.errors import Forbidden, KubeError
from rlhf_kube.kinds import Kind
from rlhf_operator.identity import Identity

from .world import NAMESPACE, World, manifest

OURS = Identity(b"k" * 32, "rlhf-system/rlhf-operator")
THEIRS = Identity(b"x" * 32, "other-system/rlhf")


RENEWED: dict[str, Any] = {"holderIdentity": "pod-1", "renewTime": "2027-01-01T00:00:00.000000Z"}
"""Of a Lease that is renewed for as long as a test lasts."""


def install(world: World, identity: Identity) -> None:
    namespace, _, name = identity.release.partition("/")
    metadata = {"name": name, "namespace": namespace}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    world.kube.create({**lease, "spec": RENEWED})


def become(world: World, identity: Identity) -> None:
    """The other release's operator has its turn."""
    world.identity = identity
    world.start_operator()


def test_a_job_stays_with_the_release_that_made_its_cluster(world: World) -> None:
    for identity in (OURS, THEIRS):
        install(world, identity)
    world.run_to_training()
    world.head().advance(5, checkpoint=5)
    world.wait(30)
    for identity in (THEIRS, OURS, THEIRS):
        become(world, identity)
        before = len(world.kube.writes)
        world.wait(600)
        if identity is THEIRS:
            assert world.kube.writes[before:] == [], "it leaves it alone"
        assert world.clusters() == ["sort-1"] and world.head().submitted == ["sort-1-0"]
    world.edit_job(suspend=True)
    world.wait(60)
    assert world.head().driver.stops == 0 and world.clusters() == ["sort-1"], "that is theirs to do"
    become(world, OURS)
    world.wait(60)
    assert world.phase() == (JobPhase.SUSPENDED, "Requested") and world.clusters() == []


def test_without_a_cluster_the_first_to_make_one_has_the_job(world: World) -> None:
    for identity in (OURS, THEIRS):
        install(world, identity)
    world.submit(manifest(suspend=True))
    world.settle()
    become(world, THEIRS)
    world.edit_job(suspend=False)
    world.settle()
    world.run_kuberay()
    become(world, OURS)
    world.wait(60)
    assert world.head().submitted == [] and world.clusters() == ["sort-1"]
    become(world, THEIRS)
    world.wait(30)
    assert world.head().submitted == ["sort-1-0"]


def test_what_an_uninstalled_release_has_left_is_taken_over(world: World) -> None:
    install(world, OURS)
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 0}))  # it is no failure
    world.kube.remove(Kind.LEASE, "rlhf-system", "rlhf-operator")
    become(world, THEIRS)
    world.wait(60)
    assert world.clusters() == ["sort-2"]
    world.run_kuberay()
    world.wait(30)
    assert world.head("sort-2").submitted == ["sort-2-0"]


@pytest.mark.parametrize(
    "spec",
    [{}, {**RENEWED, "holderIdentity": ""}, {**RENEWED, "renewTime": "2026-01-01T00:00:00Z"}],
    ids=["never held", "released", "not renewed"],
)
def test_a_release_that_does_not_act_is_the_reason_of_its_jobs(
    world: World, spec: dict[str, Any]
) -> None:
    install(world, OURS)
    world.run_to_training()
    world.wait(120)
    world.kube.edit(
        Kind.LEASE, "rlhf-system", "rlhf-operator", lambda lease: lease.update(spec=spec)
    )
    become(world, THEIRS)
    world.wait(60)
    assert world.phase() == (JobPhase.RUNNING, "OtherRelease")
    assert world.condition(ConditionType.STALLED) == ("True", "OtherRelease")
    (told,) = world.told("OtherRelease")
    assert "the release rlhf-system/rlhf-operator of the operator" in told
    assert world.clusters() == ["sort-1"] and world.head().submitted == ["sort-1-0"]
    before = len(world.kube.writes)
    world.wait(300)
    assert world.kube.writes[before:] == [], "it is told once"
    become(world, OURS)
    world.wait(30)
    assert world.phase() == (JobPhase.RUNNING, "Running")
    assert world.condition(ConditionType.STALLED) is None


def test_a_phase_of_a_later_release_stays(world: World) -> None:
    install(world, OURS)
    world.run_to_training()
    status = {**world.job()["status"], "phase": "Rehearsing"}
    world.kube.edit(Kind.JOB, NAMESPACE, "sort", lambda job: job.update(status=status))
    world.kube.edit(Kind.LEASE, "rlhf-system", "rlhf-operator", lambda lease: lease.update(spec={}))
    become(world, THEIRS)
    world.wait(60)
    assert world.phase() == ("Rehearsing", "OtherRelease")


def test_a_release_that_is_uninstalled_is_followed_within_a_minute(world: World) -> None:
    install(world, OURS)
    world.run_to_training()
    become(world, THEIRS)
    world.wait(60)
    assert world.clusters() == ["sort-1"]
    world.kube.remove(Kind.LEASE, "rlhf-system", "rlhf-operator")
    world.wait(60)
    assert world.clusters() == ["sort-2"]


def test_of_whom_nothing_may_be_known_nothing_is_taken(world: World) -> None:
    world.run_to_training()

    def trouble(verb: str, kind: Kind) -> KubeError | None:
        return Forbidden("403") if kind is Kind.LEASE else None

    world.kube.trouble = trouble
    become(world, THEIRS)
    before = len(world.kube.writes)
    world.wait(600)
    assert world.kube.writes[before:] == []


def test_a_cluster_of_an_earlier_version_is_nobody_elses(world: World) -> None:
    world.run_to_training()
    world.kube.edit(
        Kind.CLUSTER, NAMESPACE, "sort-1", lambda each: each["metadata"].pop("annotations")
    )
    world.start_operator()
    world.wait(60)
    assert world.phase()[0] is JobPhase.RUNNING and world.head().submitted == ["sort-1-0"]
