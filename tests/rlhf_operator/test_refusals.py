"""What Kubernetes does not let the operator do: where it is told, and until when."""

from __future__ import annotations

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.errors import (
    AlreadyExists,
    Conflict,
    FieldsConflict,
    Forbidden,
    Invalid,
    KubeError,
    NotAdmitted,
    NotFound,
    NotInstalled,
    UnknownField,
    Unreachable,
)
from rlhf_kube.kinds import Kind
from rlhf_operator.decide.api_errors import KubeRayTooOld, operator_reason

from .world import NAMESPACE, World, manifest

KEY = (NAMESPACE, "sort")
FORBIDDEN = ("True", "KubernetesForbidden")


AGAINST_THE_RULES = Forbidden("403: against the rules")


def refuse(world: World, verb: str, kind: Kind, error: KubeError = AGAINST_THE_RULES) -> None:
    """A policy, a quota or a role is against it from now on."""

    def trouble(asked: str, about: Kind) -> KubeError | None:
        return error if (asked, about) == (verb, kind) else None

    world.kube.trouble = trouble


def allow(world: World) -> None:
    """Whatever was refused works from now on."""
    world.kube.trouble = lambda verb, kind: None
    world.settle()


def reconciles(world: World, number: int) -> None:
    """Reconciles that end with an error are repeated for ever; a test does a few."""
    for _ in range(number):
        world.seconds += 30
        world.reconcile(KEY)


def stalled(world: World) -> tuple[str, str] | None:
    return world.condition(ConditionType.STALLED)


@pytest.mark.parametrize(
    ("kind", "error", "reason", "needs_change"),
    [
        (Kind.CLUSTER, Forbidden("403: against the rules"), "KubernetesForbidden", True),
        (Kind.SECRET, NotAdmitted("403: denied by a webhook"), "KubernetesForbidden", True),
        (Kind.CLUSTER, Invalid('400: unknown field "x"'), "KubeRayTooOld", True),
        # Another job's end makes room in a quota.
        (Kind.CLUSTER, NotAdmitted("403: exceeded quota: full"), "KubernetesForbidden", False),
    ],
)
def test_the_refusal_of_a_cluster_is_the_reason_of_the_phase_until_it_is_made(
    world: World, kind: Kind, error: KubeError, reason: str, needs_change: bool
) -> None:
    refuse(world, "create", kind, error)
    world.submit(manifest())
    reconciles(world, 2)
    assert world.phase() == (JobPhase.PROVISIONING, reason) and str(error) in world.status().message
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", reason)
    assert stalled(world) == (("True", reason) if needs_change else None)
    assert (world.condition(ConditionType.RECONCILING) is None) is needs_change
    before = len(world.kube.writes)
    reconciles(world, 20)
    assert world.events().count(reason) == 1
    assert ("apply_status", Kind.JOB) not in world.kube.writes[before:]
    allow(world)
    assert world.clusters() == ["sort-1"] and stalled(world) is None
    assert world.phase() == (JobPhase.PROVISIONING, "WaitingForPods")
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "Provisioning")


def test_a_job_whose_cluster_cannot_be_deleted_is_stalled_and_its_cluster_is_ready(
    world: World,
) -> None:
    world.run_to_training()
    refuse(world, "delete", Kind.CLUSTER)
    world.head().finish()
    reconciles(world, 4)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded") and world.status().gpus == 8
    assert stalled(world) == FORBIDDEN
    assert world.condition(ConditionType.CLUSTER_READY) == ("True", "Ready")
    (told,) = [each for each in world.status().conditions if each.type is ConditionType.STALLED]
    assert told.message == (
        "Kubernetes refuses to delete the RayCluster sort-1: 403: against the rules"
    )
    allow(world)
    assert world.clusters() == [] and stalled(world) is None


def test_a_refusal_that_lasts_is_written_once(world: World) -> None:
    world.run_to_training()
    refuse(world, "delete", Kind.CLUSTER)
    world.head().finish()
    reconciles(world, 4)
    before = len(world.kube.writes)
    reconciles(world, 20)
    assert world.kube.writes[before:] == []


def test_a_failed_job_tells_the_refusal_and_then_its_failure_again(world: World) -> None:
    world.run_to_training()
    refuse(world, "delete", Kind.CLUSTER)
    world.head().finish(ExitCode.USER, "MissingData", "no such file")
    reconciles(world, 4)
    assert world.phase() == (JobPhase.FAILED, "MissingData") and stalled(world) == FORBIDDEN
    allow(world)
    assert world.clusters() == [] and stalled(world) == ("True", "MissingData")


def test_a_job_that_cannot_give_its_cluster_back_is_not_suspended_yet(world: World) -> None:
    world.run_to_training()
    refuse(world, "delete", Kind.CLUSTER)
    world.edit_job(suspend=True)
    reconciles(world, 4)
    assert world.phase()[0] is JobPhase.RUNNING and stalled(world) == FORBIDDEN
    allow(world)
    assert world.phase() == (JobPhase.SUSPENDED, "Requested") and stalled(world) is None


def test_a_worker_that_cannot_be_replaced_stalls_its_job(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"backoffSeconds": 1}))
    refuse(world, "delete", Kind.POD)
    world.head().finish(ExitCode.RETRIABLE, "DirtyCluster", "actors are left")
    reconciles(world, 4)
    assert world.phase() == (JobPhase.RESTARTING, "DirtyCluster") and stalled(world) == FORBIDDEN
    allow(world)
    assert stalled(world) is None
    world.run_kuberay()
    world.wait(10)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]


def test_workers_that_cannot_be_released_stall_their_job(world: World) -> None:
    world.run_to_training(manifest(ttlSecondsAfterFinished=1000))
    refuse(world, "apply", Kind.CLUSTER)
    world.head().finish()
    reconciles(world, 4)
    assert world.phase()[0] is JobPhase.SUCCEEDED and stalled(world) == FORBIDDEN
    allow(world)
    assert stalled(world) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unreachable("503"), "KubernetesUnreachable"),
        (NotFound("404"), "KubernetesConflict"),
        (Conflict("409"), "KubernetesConflict"),
        (AlreadyExists("409"), "KubernetesConflict"),
        (FieldsConflict("409", frozenset()), "KubernetesConflict"),
        (Forbidden("401"), "KubernetesForbidden"),
        (NotAdmitted("403"), "KubernetesForbidden"),
        (Invalid("422"), "KubernetesInvalid"),
        (NotInstalled("404"), "KubernetesInvalid"),
        (KubeRayTooOld("400"), "KubeRayTooOld"),
        (UnknownField("500"), "DefinitionDiffers"),
    ],
)
def test_each_error_has_the_operators_reason(error: KubeError, reason: str) -> None:
    assert operator_reason(error) == reason


def test_a_definition_that_lacks_a_field_is_the_operators_problem(world: World) -> None:
    refuse(world, "apply_status", Kind.JOB, UnknownField("it has no field .status.new"))
    world.submit(manifest())
    reconciles(world, 2)
    assert world.reconciler.definition_problem == "it has no field .status.new"
    assert world.clusters() == [], "nothing is done without a status"
    allow(world)
    assert world.reconciler.definition_problem == "" and world.clusters() == ["sort-1"]
