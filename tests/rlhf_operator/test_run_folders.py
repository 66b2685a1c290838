"""Which of the jobs that name one folder of one claim may use it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.cached_kube import CachedKube
from rlhf_operator.clients.run_folders import RunFolders

from ..rlhf_kube.fake_kube import FakeKube
from .world import NAMESPACE, World, claim, manifest

REFUSED = (JobPhase.PENDING, "FolderOfAnotherJob")


def job(name: str, folder: str | None = "x", **spec: Any) -> dict[str, Any]:
    """A job with a folder on the claim that all share."""
    own = {"claimName": "shared"} | ({} if folder is None else {"subPath": folder})
    storage = {"persistentVolumeClaim": own}
    return manifest(name, checkpoint={"storage": storage}, **spec)


def submit(world: World, *jobs: dict[str, Any]) -> None:
    """Create jobs, one second after the other."""
    for each in jobs:
        world.submit(each)
        world.seconds += 1


def test_the_second_job_in_a_folder_is_refused_before_anything_runs(world: World) -> None:
    submit(world, job("b"), job("a"))
    world.settle()
    assert world.clusters() == ["b-1"] and world.phase("a") == REFUSED
    assert "the job b, which owns it" in world.status("a").message
    assert "pvc://shared/x" in world.status("a").message
    assert world.condition(ConditionType.ACCEPTED, "a") == ("False", "FolderOfAnotherJob")
    assert world.condition(ConditionType.STALLED, "a") == ("True", "FolderOfAnotherJob")
    assert world.told("FolderOfAnotherJob") == [world.status("a").message]


def test_an_ended_job_keeps_its_folder_until_it_is_deleted(world: World) -> None:
    submit(world, job("b", ttlSecondsAfterFinished=0))
    world.run_to_end()
    world.wait(60)
    assert world.phase("b")[0] is JobPhase.SUCCEEDED and world.clusters() == []
    submit(world, job("a"))
    world.wait(60)
    assert world.phase("a") == REFUSED
    world.start_operator()
    world.wait(60)
    assert world.phase("a") == REFUSED, "a new process of the operator knows ended jobs, too"
    world.delete_job("b")
    world.wait(world.settings.wait_seconds)
    assert world.clusters() == ["a-1"]
    assert world.condition(ConditionType.STALLED, "a") is None


def test_a_job_that_has_begun_precedes_an_older_one_that_has_not(world: World) -> None:
    submit(world, job("older", suspend=True), job("younger", "y"))
    world.settle()
    assert world.clusters() == ["younger-1"]
    world.edit_job("older", suspend=False, **_storage("y"))
    world.settle()
    assert world.phase("older") == REFUSED
    # Between two clusters the younger one has none, and is not refused.
    world.edit_job("younger", suspend=True)
    world.wait(120)
    assert world.clusters() == []
    world.edit_job("younger", suspend=False)
    world.wait(60)
    assert world.clusters() == ["younger-2"] and world.phase("older") == REFUSED


def _storage(folder: str) -> dict[str, Any]:
    spec: dict[str, Any] = job("any", folder)["spec"]
    return {"checkpoint": spec["checkpoint"]}


def test_a_job_that_moved_to_another_jobs_folder_is_refused_there(world: World) -> None:
    submit(world, job("first", "x"), job("second", "y"))
    world.settle()
    world.edit_job("first", suspend=True)
    world.wait(120)
    world.edit_job("first", suspend=False, **_storage("y"))
    world.wait(60)
    assert world.clusters() == ["second-1"] and world.phase("first") == REFUSED


def test_a_claim_that_is_made_later_is_the_older_jobs(world: World) -> None:
    for each in (job("b"), job("a")):
        world.submit(each, with_claim=False)
        world.seconds += 1
    world.settle()
    assert {world.phase(name)[1] for name in "ab"} == {"ClaimNotFound"}
    world.kube.create(claim())
    world.wait(world.settings.wait_seconds)
    assert world.clusters() == ["b-1"] and world.phase("a") == REFUSED


def test_a_job_that_its_driver_has_refused_owns_nothing(world: World) -> None:
    """The folder is that of a deleted job, which may be created again."""
    submit(world, job("b", ttlSecondsAfterFinished=0))
    world.settle()
    world.run_kuberay()
    world.settle()
    text = "the run's folder belongs to another job"
    world.head("b-1").finish(ExitCode.MANIFEST, "FolderOfAnotherJob", text)
    world.wait(60)
    assert world.phase("b") == (JobPhase.FAILED, "FolderOfAnotherJob")
    assert world.status("b").message.startswith(text)
    submit(world, job("a"))
    world.settle()
    assert world.phase("a")[0] is JobPhase.PROVISIONING


# The index


def stored(name: str, folder: str | None = "x", **metadata: Any) -> dict[str, Any]:
    document = job(name, folder)
    own = {"uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**document, "metadata": {**document["metadata"], **own, **metadata}}


def owner_of_b(first: dict[str, Any], second: dict[str, Any], **index: Any) -> str | None:
    folders = RunFolders(**index)
    folders.put(first)
    folders.put(second)
    return folders.owner((NAMESPACE, "b"))


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("x", "x", True),
        ("x", "x/", True),
        ("x/./y", "x//y", True),
        ("x", "x/y", True),
        ("x/y", "x", True),
        ("x", "xy", False),
        ("x/y", "x/z", False),
        (".", "x/y", True),
        ("x/y", "./", True),
        (".", ".", True),
        ("b", None, True),
        (None, None, False),
    ],
)
def test_folders_overlap_if_one_is_inside_of_the_other(
    first: str | None, second: str | None, overlap: bool
) -> None:
    assert owner_of_b(stored("a", first), stored("b", second)) == ("a" if overlap else None)


def test_of_two_that_have_not_begun_the_older_is_the_owner_then_the_first_by_name() -> None:
    late = {"creationTimestamp": "2026-01-01T00:00:01Z"}
    assert owner_of_b(stored("a"), stored("b")) == "a"
    assert owner_of_b(stored("c"), stored("b")) is None
    assert owner_of_b(stored("a", **late), stored("b")) is None
    assert owner_of_b(stored("c"), stored("b", **late)) == "c"


def test_other_claims_namespaces_and_controllers_are_no_conflict() -> None:
    assert owner_of_b(stored("a", namespace="other"), stored("b")) is None
    foreign = stored("a")
    foreign["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert owner_of_b(foreign, stored("b")) is None
    apart = stored("a")
    apart["spec"]["checkpoint"]["storage"]["persistentVolumeClaim"]["claimName"] = "apart"
    assert owner_of_b(apart, stored("b")) is None


@pytest.mark.parametrize("storage", [None, 7, {"uri": "s3://x"}, {"persistentVolumeClaim": [1]}])
def test_a_job_without_a_claim_names_no_folder(storage: object) -> None:
    odd = stored("a")
    odd["spec"]["checkpoint"] = {"storage": storage}
    assert owner_of_b(odd, stored("b")) is None


def test_the_charts_claim_counts_and_the_one_that_a_job_was_accepted_with_first() -> None:
    def chart(claim: str) -> CheckpointStorage:
        return CheckpointStorage.model_validate({"persistentVolumeClaim": {"claimName": claim}})

    plain = stored("x")
    del plain["spec"]["checkpoint"]
    second = stored("b", "x", creationTimestamp="2026-01-02T00:00:00Z")
    assert owner_of_b(plain, second, default=chart("shared")) == "x"
    assert owner_of_b(plain, second, default=chart("other")) is None
    pinned = chart("shared").model_dump(mode="json", by_alias=True)
    accepted = {**plain, "status": {"defaults": {"storage": pinned}}}
    assert owner_of_b(accepted, second, default=chart("other")) == "x"


def test_a_deleted_job_gives_its_folder_back_and_its_successor_keeps_it() -> None:
    kube = FakeKube()
    for each in (job("a"), job("b")):
        kube.create(each)
    cached = CachedKube(kube)
    cached.resync(Kind.JOB, NAMESPACE)
    place = (Kind.JOB, NAMESPACE, "a")
    old = copy.deepcopy(kube.objects[place])
    assert cached.folders.owner((NAMESPACE, "b")) == "a"
    # The watch reports the deletion after the successor.
    kube.remove(*place)
    kube.create(job("a"))
    cached.put(Kind.JOB, copy.deepcopy(kube.objects[place]))
    cached.drop(Kind.JOB, old)
    assert cached.folders.owner((NAMESPACE, "b")) == "a"
    # A late event about the deleted job brings nothing back.
    cached.drop(Kind.JOB, kube.objects[place])
    cached.put(Kind.JOB, old)
    assert cached.folders.owner((NAMESPACE, "b")) is None


@pytest.mark.parametrize("by_request", [True, False])
def test_a_deletion_that_no_watch_reported_gives_the_folder_back(by_request: bool) -> None:
    kube = FakeKube()
    for each in (job("a"), job("b")):
        kube.create(each)
    cached = CachedKube(kube)
    cached.resync(Kind.JOB, NAMESPACE)
    kube.remove(Kind.JOB, NAMESPACE, "a")
    if by_request:
        cached.forget_job(NAMESPACE, "a")
        assert cached.get(Kind.JOB, NAMESPACE, "a") is None
    else:
        cached.resync(Kind.JOB, NAMESPACE)
    assert cached.folders.owner((NAMESPACE, "b")) is None
