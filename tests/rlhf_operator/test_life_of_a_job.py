"""A job's life in a pretended world, from its submission to its end."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import QUEUE_LABEL
from rlhf_api.report import SavingReport
from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.kinds import Kind
from rlhf_operator.decide.observed import PlanResult, Refusal
from rlhf_operator.process.leadership import NotLeading

from .awaited import now
from .world import NAMESPACE, World, claim, manifest


def pools(*variables: list[str]) -> dict[str, Any]:
    """A section with a pool for each list of names."""
    made = [
        {
            **{"name": f"pool-{number}", "nodes": 1, "devicesPerNode": 1, "gpu": "A100-80G"},
            "env": [{"name": name, "value": "a"} for name in names],
        }
        for number, names in enumerate(variables)
    ]
    return {"resources": {"nodePools": made}}


JUDGE = {
    "http": {
        "url": "http://judge/score",
        "headers": [{"name": "Authorization", "valueFromEnv": "JUDGE_TOKEN"}],
    }
}

WEB = {"url": "http://web/mcp", "header": {"name": "X-Key", "valueFromEnv": "WEB_KEY"}}


def test_a_job_trains_and_succeeds(world: World) -> None:
    world.submit(manifest())
    world.settle()
    assert world.phase() == (JobPhase.PROVISIONING, "WaitingForPods")
    assert world.condition(ConditionType.ACCEPTED) == ("True", "Accepted")
    assert world.status().gpus == 0, "no pod has a node yet"
    world.run_kuberay()
    world.settle()
    assert world.status().gpus == 8
    assert world.head().submitted == ["sort-1-0"]
    assert world.head().driver.entrypoint == (
        "exec rlhf drive /etc/rlhf/job/job.yaml --output /rlhf/run --submission-id sort-1-0"
    )
    world.head().advance(3, metrics={"reward/mean": 0.5})
    world.wait(15)
    assert world.phase() == (JobPhase.RUNNING, "Running")
    progress = world.status().progress
    assert progress is not None and (progress.step, progress.reward) == (3, "0.5")
    world.head().finish()
    world.wait(10)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded")
    assert world.condition(ConditionType.READY) == ("True", "Succeeded")
    assert world.condition(ConditionType.COMPLETE) == ("True", "Succeeded")
    assert world.condition(ConditionType.RECONCILING) is None
    status = world.status()
    assert status.driver is not None and status.driver.exit_code == 0
    assert status.artifacts.model == "pvc://shared/sort/model"
    assert status.progress is not None and status.progress.percent == 100
    assert world.clusters() == [] and status.gpus == 0
    assert status.gpu_seconds == pytest.approx(8 * 25, abs=8 * 10)


def test_a_job_that_ended_early_has_succeeded_and_says_why(world: World) -> None:
    world.run_to_training()
    world.head().finish(message="training ended early, after step 6 of 9")
    world.wait(10)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded")
    assert world.status().message.startswith("training ended early, after step 6 of 9; the model")


def test_without_a_final_report_the_status_does_not_say_that_all_steps_are_done(
    world: World,
) -> None:
    world.run_to_training()
    world.head().end(0)
    world.wait(10)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded")
    assert world.status().message.startswith("training is done")


def test_the_final_report_is_acknowledged_after_it_was_stored(world: World) -> None:
    world.run_to_training()
    world.head().finish()
    driver = world.head().driver
    assert driver.report is not None
    sequence = driver.report.sequence
    world.wait(world.settings.poll_seconds)
    assert driver.acknowledged == sequence


@pytest.mark.parametrize("field", ["clusterTTLSeconds", "ttlSecondsAfterFinished"])
def test_the_cluster_is_kept_for_its_time(world: World, field: str) -> None:
    seconds: dict[str, Any] = {field: 100}
    world.run_to_training(manifest(**seconds))
    world.head().finish()
    world.wait(50)
    assert world.phase()[0] is JobPhase.SUCCEEDED and world.clusters() == ["sort-1"]
    world.wait(60)
    assert world.clusters() == []


def test_a_deprecated_field_is_named_and_what_to_write_instead(world: World) -> None:
    world.run_to_training(manifest(ttlSecondsAfterFinished=100))
    (accepted,) = (each for each in world.status().conditions if each.type == "Accepted")
    assert accepted.status == "True" and accepted.reason == "Accepted"
    assert "spec.ttlSecondsAfterFinished is deprecated: write spec.clusterTTLSeconds" in (
        accepted.message
    )
    world.edit_job(ttlSecondsAfterFinished=0, clusterTTLSeconds=100)
    world.settle()
    (accepted,) = (each for each in world.status().conditions if each.type == "Accepted")
    assert accepted.message == "the manifest can run"
    assert world.status().restarts.total == 0 and world.clusters() == ["sort-1"]


@pytest.mark.parametrize("code", [ExitCode.DONE, ExitCode.USER])
def test_the_devices_of_an_ended_job_are_released_and_its_head_stays(
    world: World, code: ExitCode
) -> None:
    world.run_to_training(manifest(ttlSecondsAfterFinished=100))
    world.head().finish(code)
    world.wait(10)
    cluster = world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"]
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["groupName"]) == (0, 0, "a100")
    assert group["template"]["spec"]["containers"], "the rest of it stays"
    for _ in range(2):  # as KubeRay does then
        world.kill_pod("worker")
    before = len(world.kube.writes)
    world.wait(50)
    assert world.status().gpus == 0 and world.clusters() == ["sort-1"]
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "Released")
    assert ("apply", Kind.CLUSTER) not in world.kube.writes[before:], "it is released once"
    world.wait(60)
    assert world.clusters() == []


def test_the_workers_of_an_ended_job_in_a_queue_stay_for_its_time(world: World) -> None:
    # A queue takes a cluster of another size for a new one.
    job = manifest(ttlSecondsAfterFinished=100)
    job["metadata"]["labels"] = {QUEUE_LABEL: "main"}
    world.run_to_training(job)
    world.head().finish()
    world.wait(50)
    (group,) = world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"]["spec"]["workerGroupSpecs"]
    assert group["replicas"] == 2 and world.status().gpus == 8


def test_a_job_of_another_controller_is_left_alone(world: World) -> None:
    world.submit(manifest(managedBy="example.com/other"))
    world.settle()
    world.wait(300)
    assert {kind for _, kind in world.kube.writes} == {Kind.JOB, Kind.CLAIM}
    stored = world.kube.objects[Kind.JOB, NAMESPACE, "sort"]
    assert stored["status"] == {"phase": "Pending", "observedGeneration": -1}, "the default"


def test_a_settled_job_causes_no_writes(world: World) -> None:
    world.run_to_training()
    world.wait(60)
    before = len(world.kube.writes)
    world.wait(600)
    assert world.kube.writes[before:] == []


def test_a_running_jobs_progress_is_written_at_most_every_15_seconds(world: World) -> None:
    world.run_to_training()
    world.wait(15)
    before = len(world.kube.writes)
    for step in range(2, 62):
        world.head().advance(step)
        world.wait(1)
    assert len(world.kube.writes) - before <= 5


def test_between_events_kubernetes_is_not_asked_at_all(world: World) -> None:
    world.run_to_training()
    world.wait(60)
    before = world.kube.reads
    world.wait(3600)
    assert world.kube.reads == before


def test_a_job_that_waits_in_a_queue_asks_for_nothing(world: World) -> None:
    world.queue_holds = True
    world.submit(manifest())
    world.settle()
    before = world.kube.reads
    world.wait(3600)
    assert world.kube.reads == before and world.phase() == (JobPhase.PENDING, "Queued")


def test_a_claim_that_is_made_later_is_noticed_without_an_event(world: World) -> None:
    world.submit(manifest(), with_claim=False)
    world.settle()
    assert world.condition(ConditionType.ACCEPTED) == ("False", "ClaimNotFound")
    world.kube.create(claim())
    world.wait(world.settings.wait_seconds)
    assert world.condition(ConditionType.ACCEPTED) == ("True", "Accepted")
    assert world.clusters() == ["sort-1"]


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"image": None}, "NoImage", "jobDefaults.image"),
        ({"resources": {}}, "NoNodePools", "jobDefaults.nodePools"),
        ({"checkpoint": {}}, "NoCheckpointStorage", "name a persistentVolumeClaim"),
        ({"code": {"local": "src"}}, "CodeNotReachable", "configMap"),
        ({"code": {"configMap": {"name": "mine"}}}, "CodeNotFound", "ConfigMap mine"),
        (
            {"rewards": [JUDGE], "env": [{"name": "OTHER", "value": "1"}]},
            "VariableNotSet",
            "got JUDGE_TOKEN, allowed a name in spec.env",
        ),
        (
            {"rollout": {"samplesPerPrompt": 2, "environment": {"servers": {"web": WEB}}}},
            "VariableNotSet",
            "spec.rollout.environment.servers[web].header takes a value from a variable that",
        ),
        (
            {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "other"}}}},
            "ClaimNotFound",
            "claim other",
        ),
        ({"schedule": {"steps": "ten"}}, "InvalidManifest", "spec.schedule.steps"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason_and_holds_nothing(
    world: World, spec: dict[str, Any], reason: str, said: str
) -> None:
    document = manifest(**spec)
    document["spec"] = {name: value for name, value in document["spec"].items() if value}
    world.submit(document)
    world.settle()
    assert world.phase() == (JobPhase.PENDING, reason)
    assert said in world.status().message.replace("persistentVolumeClaim other", "claim other")
    assert world.condition(ConditionType.ACCEPTED) == ("False", reason)
    assert world.condition(ConditionType.STALLED) == ("True", reason)
    world.wait(300)
    assert world.clusters() == [] and world.events() == [reason]


@pytest.mark.parametrize(
    ("variable", "spec", "is_accepted"),
    [
        ("JUDGE_TOKEN", {"env": [{"name": "JUDGE_TOKEN", "value": "a"}]}, True),
        ("HF_TOKEN", {"hub": {"tokenSecretName": "hub"}}, True),
        ("WANDB_API_KEY", {"telemetry": {"wandb": {"project": "p", "secretName": "w"}}}, True),
        ("HF_TOKEN", {"hub": {"cacheClaimName": "cache"}}, False),
        ("JUDGE_TOKEN", pools(["JUDGE_TOKEN"], ["JUDGE_TOKEN", "OTHER"]), True),
        ("JUDGE_TOKEN", pools(["JUDGE_TOKEN"], ["OTHER"]), False),
    ],
)
def test_a_header_may_take_any_variable_that_all_workers_have(
    world: World, variable: str, spec: dict[str, Any], is_accepted: bool
) -> None:
    header = {"name": "Authorization", "valueFromEnv": variable}
    judge = {"url": "http://judge/v1", "model": "m", "prompt": "{response}", "headers": [header]}
    world.submit(manifest(rewards=[{"judge": judge}], **spec))
    world.settle()
    reasons = ("True", "Accepted") if is_accepted else ("False", "VariableNotSet")
    assert world.condition(ConditionType.ACCEPTED) == reasons


def test_a_job_waits_for_a_shared_claim(world: World) -> None:
    world.kube.create(claim(mode="ReadWriteOnce"))
    world.submit(manifest())
    world.settle()
    assert world.phase() == (JobPhase.PENDING, "ClaimNotShared")
    world.kube.edit(
        Kind.CLAIM,
        NAMESPACE,
        "shared",
        lambda each: each["spec"].update(accessModes=["ReadWriteMany"]),
    )
    world.wait(world.settings.wait_seconds)
    assert world.phase()[0] is JobPhase.PROVISIONING
    assert world.condition(ConditionType.STALLED) is None


def test_a_job_that_cannot_fit_never_gets_a_gpu(world: World) -> None:
    world.planner.answer = PlanResult(refusal=Refusal("DoesNotFit", "needs 90 GiB of 80"))
    world.submit(manifest())
    world.wait(60)
    assert world.phase() == (JobPhase.PENDING, "DoesNotFit")
    assert world.clusters() == [] and "90 GiB" in world.status().message


def test_a_job_waits_for_its_plan(world: World) -> None:
    world.planner.answer = None
    world.submit(manifest())
    world.settle()
    assert world.phase() == (JobPhase.PLANNING, "Planning") and world.clusters() == []


@pytest.mark.parametrize(
    ("num_answers", "written"), [(0, []), (1, []), (2, ["apply_status"])], ids=str
)
def test_nothing_is_written_once_another_replica_may_act(
    world: World, num_answers: int, written: list[str]
) -> None:
    # A look, or a write before, may take longer than the Lease lasts.
    world.submit(manifest())
    key = (NAMESPACE, "sort")
    answers = iter([True] * num_answers)
    world.reconciler.may_act = lambda: next(answers, False)
    before = len(world.kube.writes)
    with pytest.raises(NotLeading):
        now(world.reconciler.reconcile(key, lambda: None))
    writes = world.kube.writes[before:]
    assert [verb for verb, kind in writes if kind is not Kind.CORE_EVENT] == written
    world.reconciler.may_act = lambda: True
    world.settle()
    assert world.clusters() == ["sort-1"]


def test_the_deadline_ends_a_job_after_its_driver_has_saved(world: World) -> None:
    world.run_to_training(manifest(activeDeadlineSeconds=100))
    world.head().stubborn = False
    world.wait(120)
    assert world.phase() == (JobPhase.FAILED, "DeadlineExceeded")
    assert world.head().submissions["sort-1-0"].stops > 0
    assert world.clusters() == []
    assert "its progress is saved" in world.status().message


def test_the_deadline_of_a_job_without_a_step_promises_nothing(world: World) -> None:
    world.submit(manifest(activeDeadlineSeconds=100))
    world.settle()
    world.run_kuberay()
    world.settle()
    world.head().stubborn = False
    world.wait(120)
    assert world.phase() == (JobPhase.FAILED, "DeadlineExceeded")
    assert "it had trained no step" in world.status().message


def test_the_start_deadline_ends_a_job_whose_pods_do_not_come(world: World) -> None:
    world.submit(manifest(startDeadlineSeconds=100))
    world.settle()
    world.run_kuberay(ready=False)
    world.set_pod(
        world.pods()[0],
        conditions=[
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/4 nodes are available",
            }
        ],
    )
    world.wait(50)
    assert world.phase() == (JobPhase.PROVISIONING, "Unschedulable")
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "Unschedulable")
    assert world.events().count("Unschedulable") == 1, "phase and condition tell it once"
    assert "0/4 nodes" in world.status().message
    world.wait(60)
    assert world.phase() == (JobPhase.FAILED, "StartDeadlineExceeded")


def test_a_bad_image_is_told_at_once(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    world.set_pod(
        world.pods()[1],
        containerStatuses=[
            {"name": "ray-worker", "image": "runtime:1", "state": {"waiting": waiting}}
        ],
    )
    world.settle()
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "ImagePull")
    assert "ImagePull" in world.events()


def test_an_exit_code_of_the_manifest_ends_the_job(world: World) -> None:
    world.run_to_training()
    world.head().finish(ExitCode.USER, "MissingData", "no such file: got /d.parquet")
    world.wait(10)
    assert world.phase() == (JobPhase.FAILED, "MissingData")
    assert world.condition(ConditionType.FAILED) == ("True", "MissingData")
    assert "got /d.parquet" in world.status().message
    status = world.status()
    assert status.driver is not None and status.driver.exit_code == 3
    assert world.head().submitted == ["sort-1-0"]


def test_checkpoints_that_fail_are_told_and_a_success_leaves_no_trouble(world: World) -> None:
    world.run_to_training()
    full = SavingReport(failures=1, reason="NoSpace", message="1 failed since step 5: no space")
    world.head().driver.advance(6, saving=full)
    world.wait(15)
    assert world.condition(ConditionType.CHECKPOINTS_FAILING) == ("True", "NoSpace")
    assert world.phase() == (JobPhase.RUNNING, "Running")
    assert world.events().count("CheckpointsFailing") == 1
    assert world.status().checkpoint_failures == 1
    world.head().finish()
    world.wait(10)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded")
    assert world.condition(ConditionType.CHECKPOINTS_FAILING) is None


def test_a_driver_that_has_waited_for_space_in_vain_is_not_started_again(world: World) -> None:
    world.run_to_training()
    full = SavingReport(failures=1, reason="NoSpace", message="waiting for space")
    world.head().driver.advance(8, saving=full)
    world.head().finish(ExitCode.RETRIABLE, "NoSpace", "the disk is full, after 86400 s")
    world.wait(10)
    assert world.phase() == (JobPhase.FAILED, "NoSpace")
    assert world.head().submitted == ["sort-1-0"]
    assert world.condition(ConditionType.CHECKPOINTS_FAILING) == ("True", "NoSpace")


def test_a_running_job_says_what_its_driver_does(world: World) -> None:
    world.run_to_training()
    driver = world.head().driver
    for phase, says in (
        ("Start", "starts its workers"),
        ("WarmStart", "trained on reference answers"),
        ("Train", "training"),
        ("Restart", "starts its workers again"),
        ("OfALaterRelease", "training"),
    ):
        driver.advance(1)
        assert driver.report is not None
        driver.report = driver.report.model_copy(update={"phase": phase})
        world.wait(world.settings.progress_seconds)
        assert world.phase() == (JobPhase.RUNNING, "Running")
        assert says in world.status().message
    before, driver.report = world.status().message, None
    world.wait(world.settings.progress_seconds)
    assert world.status().message == before, "it did not answer, and does the same"
