"""The real API server, as users with and without rights meet it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from rlhf_api.spec.cluster import ImageSpec, ObjectReference
from rlhf_api.spec.pod.scheduling import Toleration
from rlhf_cli.app import app
from rlhf_cli.cluster.connect import ClusterTarget, connect, kubeconfig_files
from rlhf_cli.cluster.jobs import find_job
from rlhf_cli.cluster.location import ClaimFolder
from rlhf_cli.cluster.reader import reader_pod
from rlhf_kube.errors import Forbidden, KubeconfigUnusable, Refused, Unreachable
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster, Manifest

from ...cluster.kubectl import Kubectl
from ...kubeconfigs import config, written
from ...waiting import wait_until
from .objects import RUNNING, submission

HOME = Path("/home/a")


@pytest.mark.parametrize(
    ("named", "variable", "files"),
    [
        (None, None, ("/home/a/.kube/config",)),
        (None, "", ("/home/a/.kube/config",)),
        (None, "/x:/y", ("/x", "/y")),
        ("/z", "/x:/y", ("/z",)),
    ],
)
def test_files_are_looked_for_as_kubectl_does(
    named: str | None, variable: str | None, files: tuple[str, ...]
) -> None:
    environment = {} if variable is None else {"KUBECONFIG": variable}
    found = kubeconfig_files(Path(named) if named else None, environment, HOME)
    assert found == tuple(map(Path, files))


def test_the_context_says_the_namespace_and_the_option_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "config", config("https://127.0.0.1:1", "team"))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{file}")
    assert connect(ClusterTarget()).namespace == "team"
    assert connect(ClusterTarget(namespace="mine")).namespace == "mine"
    bare = written(tmp_path / "bare", config("https://127.0.0.1:1"))
    assert connect(ClusterTarget(bare)).namespace == "default"


def test_a_kubeconfig_that_says_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubeconfigUnusable, match=r"got no file at .*/\.kube/config"):
        connect(ClusterTarget())
    file = written(tmp_path / "config", config("https://127.0.0.1:1"))
    with pytest.raises(KubeconfigUnusable, match="its contexts are here"):
        connect(ClusterTarget(file, "there"))
    file.write_text("a: [")
    with pytest.raises(KubeconfigUnusable, match="correct it"):
        connect(ClusterTarget(file))


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        port = taken.getsockname()[1]
        file = written(tmp_path / "config", config(f"https://127.0.0.1:{port}"))
        with pytest.raises(Unreachable, match=f"from https://127.0.0.1:{port}; check"):
            connect(ClusterTarget(file)).version()


def test_without_the_package_its_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['kubernetes'] = None\n"
        "from rlhf_cli.app import app; app(['status'], prog_name='rlhf')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and "rlhf-operator[cluster]" in done.stderr


@pytest.fixture
def stranger(defined: Kubectl, namespace: str, tmp_path: Path) -> Path:
    """The kubeconfig of somebody who may do nothing."""
    defined("create", "serviceaccount", "stranger", f"--namespace={namespace}")
    token = defined("create", "token", "stranger", f"--namespace={namespace}").strip()
    document = yaml.safe_load(defined.kubeconfig.read_text())
    (cluster,) = document["clusters"]
    plain = config(cluster["cluster"]["server"], namespace, token=token)
    plain["clusters"][0]["cluster"] = cluster["cluster"]
    return written(tmp_path / "stranger", plain)


@pytest.mark.cluster
def test_who_may_not_is_told_what(stranger: Path) -> None:
    cluster = connect(ClusterTarget(stranger))
    job = submission("sort", cluster.namespace)
    for doing in (
        lambda: cluster.list(Kind.JOB, cluster.namespace),
        lambda: cluster.apply(job),
        lambda: cluster.delete(Kind.JOB, cluster.namespace, "sort"),
        lambda: list(cluster.execute(cluster.namespace, "x", "c", ["true"])),
        lambda: list(cluster.watch(Kind.JOB, cluster.namespace, "0")),
    ):
        with pytest.raises(Forbidden, match="you may not .*ask for a role"):
            doing()


@pytest.mark.cluster
def test_who_is_nobody_is_told(stranger: Path) -> None:
    document = yaml.safe_load(stranger.read_text())
    document["users"][0]["user"]["token"] = "expired"
    with pytest.raises(Forbidden, match="log in again"):
        connect(ClusterTarget(written(stranger, document))).version()


@pytest.mark.cluster
def test_an_unknown_field_is_refused_by_its_name(remote: Cluster) -> None:
    with pytest.raises(Refused, match=r"spec\.colour"):
        remote.apply(submission("sort", remote.namespace, colour="red"))


@pytest.mark.cluster
def test_rules_of_the_cluster_are_told_one_by_one(remote: Cluster) -> None:
    remote.apply(submission("sort", remote.namespace))
    other = {"schedule": {"steps": 300, "promptsPerStep": 64}, "rollout": {"samplesPerPrompt": 4}}
    with pytest.raises(Refused) as caught:
        remote.apply(submission("sort", remote.namespace, **other))
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("  spec.rollout cannot change, but for rollout.expectedPromptTokens")
    assert lines[2].startswith("  spec.schedule.steps can change only while the job is suspended")


@pytest.mark.cluster
def test_the_restricted_profile_takes_the_reader(remote: Cluster, defined: Kubectl) -> None:
    space = remote.namespace
    label = "pod-security.kubernetes.io/enforce=restricted"
    defined("label", "namespace", space, label)
    remote.apply(submission("sort", space))
    job = find_job(remote, "sort")
    image = ImageSpec(runtime="registry/rlhf:1", pull_secrets=(ObjectReference(name="regcred"),))
    tolerations = (Toleration(key="gpu", operator="Exists", effect="NoExecute"),)
    pod = reader_pod(job, ClaimFolder("disk", "sort"), image, "abc123", tolerations)
    told = remote.apply(pod, dry_run=True)
    assert told["spec"]["securityContext"]["runAsUser"] == 1000
    assert told["metadata"]["ownerReferences"][0]["uid"] == job.uid
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(Refused, match="violates PodSecurity"):
        remote.apply(pod, dry_run=True)


class Commands:
    """The commands at the real API server."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl, self._namespace = kubectl, namespace

    def __call__(self, *words: str) -> Result:
        place = [f"--kubeconfig={self._kubectl.kubeconfig}", f"--namespace={self._namespace}"]
        return CliRunner().invoke(app, [*words, *place])

    def set_status(self, status: Any) -> None:
        """As the operator does."""
        patch = json.dumps({"status": status})
        self._kubectl(
            *("patch", "rlhfjob", "sort-grpo", f"--namespace={self._namespace}"),
            *("--subresource=status", "--type=merge", f"--patch={patch}"),
        )


@pytest.fixture
def rlhf(defined: Kubectl, namespace: str) -> Commands:
    return Commands(defined, namespace)


EXAMPLE = str(Path(__file__).parents[3] / "examples" / "01-sort-grpo.yaml")


@pytest.mark.cluster
def test_the_life_of_a_job_by_the_commands(
    rlhf: Commands, defined: Kubectl, namespace: str
) -> None:
    assert "created" in rlhf("submit", EXAMPLE, "--dry-run").stdout
    assert rlhf("status").stderr == f"No jobs in namespace {namespace}.\n"
    assert rlhf("submit", EXAMPLE).stdout == f"rlhfjob/sort-grpo created in {namespace}\n"
    assert rlhf("submit", EXAMPLE).stdout == f"rlhfjob/sort-grpo unchanged in {namespace}\n"
    rlhf.set_status(RUNNING | {"cluster": {"name": "sort-grpo-1", "attempt": 1, "admitted": True}})
    assert rlhf("status").stdout.splitlines()[1].split()[:3] == ["sort-grpo", "Running", "120/500"]
    assert "continues from step 100" not in rlhf("suspend", "sort-grpo").stdout
    assert defined.get(namespace, "rlhfjob/sort-grpo")["spec"]["suspend"] is True
    assert "continues from step 100" in rlhf("resume", "sort-grpo").stdout
    described = rlhf("describe", "sort-grpo")
    assert described.exit_code == 0 and "RayCluster sort-grpo-1 does not exist" in described.stdout
    rlhf.set_status(
        {
            "observedGeneration": 3,
            "phase": "Failed",
            "driver": {"submissionId": "sort-grpo-1-0", "attempt": 1, "restart": 0, "exitCode": 3},
        }
    )
    watched = rlhf("status", "sort-grpo", "--watch")
    assert watched.exit_code == 3 and "phase=Failed" in watched.stdout
    assert rlhf("cancel", "sort-grpo", "--yes").exit_code == 0
    assert defined.get(namespace, "rlhfjobs")["items"] == []


@pytest.mark.cluster
def test_what_kubectl_has_set_is_taken_over_only_by_force(
    rlhf: Commands, defined: Kubectl, namespace: str
) -> None:
    defined("apply", f"--namespace={namespace}", f"--filename={EXAMPLE}")
    rlhf("suspend", "sort-grpo")
    changed = ("submit", EXAMPLE, "--set", "spec.schedule.steps=300")
    result = rlhf(*changed)
    assert result.exit_code == 2
    assert 'spec.schedule.steps: conflict with "kubectl-client-side-apply"' in result.stderr
    assert rlhf(*changed, "--force-conflicts").exit_code == 0
    assert defined.get(namespace, "rlhfjob/sort-grpo")["spec"]["schedule"]["steps"] == 300


def with_a_claim(remote: Cluster) -> None:
    """A job whose files lie in a claim that does not exist: its reader stays Pending."""
    storage = {"storage": {"persistentVolumeClaim": {"claimName": "disk"}}}
    image = {"runtime": "registry/rlhf:1"}
    job = submission("sort", remote.namespace, checkpoint=storage, image=image)
    remote.apply(job)


@pytest.mark.cluster
def test_a_reader_that_cannot_start_says_what_the_scheduler_says(
    remote: Cluster, rlhf: Commands
) -> None:
    with_a_claim(remote)
    result = rlhf("logs", "sort", "--start-timeout", "3")
    assert result.exit_code == 4
    waiting, failed = result.stderr.splitlines()[1:]
    assert waiting.startswith("it has not started yet: Unschedulable: ")
    assert failed.startswith("ReaderFailed: ") and 'persistentvolumeclaim "disk"' in failed
    assert pods(remote) == ()


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_leaves_no_reader(
    remote: Cluster, defined: Kubectl, number: signal.Signals
) -> None:
    with_a_claim(remote)
    program = (  # Ctrl-C is ignored by what a script has put in the background
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rlhf_cli.app import main; main()"
    )
    place = [f"--kubeconfig={defined.kubeconfig}", f"--namespace={remote.namespace}"]
    command = [sys.executable, "-c", program, "fetch", "sort", *place]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            wait_until(lambda: bool(pods(remote)), 60, "there is a reader")
            running.send_signal(number)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert (running.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert pods(remote) == ()


def pods(cluster: Cluster) -> tuple[Manifest, ...]:
    return cluster.list(Kind.POD, cluster.namespace)
