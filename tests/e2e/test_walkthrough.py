"""The README's section on Kubernetes, typed line by line: from nothing to a model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..charts.helm import Helm
from ..cluster.devcluster import DevCluster
from ..cluster.kubectl import Kubectl
from ..cluster.programs import built
from .installed import uninstall

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## On Kubernetes\n(?P<text>.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```bash\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
FETCHED = ROOT / "rlhf-runs" / "from-kubernetes"
"""Where the README's last line puts the model."""
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
"""What `make e2e` would hand on to the `make` of the README."""


def typed() -> str:
    """Everything that the section tells people to type, in order."""
    section = SECTION.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert section is not None
    return "".join(block["lines"] for block in BLOCK.finditer(section["text"]))


@pytest.fixture
def clean(kubectl: Kubectl, tmp_path: Path) -> Iterator[None]:
    """Nothing of an earlier walk is there, and nothing of this one stays."""
    shutil.rmtree(FETCHED, ignore_errors=True)
    yield
    shutil.rmtree(FETCHED, ignore_errors=True)
    flags = ("--namespace=default", "--ignore-not-found", "--timeout=180s")
    kubectl("delete", "rlhfjob/sort-grpo", *flags)
    kubectl("delete", "persistentvolumeclaim/checkpoints", *flags)
    uninstall(Helm(built("helm"), tmp_path, kubectl.kubeconfig), kubectl)


@pytest.mark.usefixtures("clean")
def test_what_the_readme_says_of_kubernetes_works(node_cluster: DevCluster) -> None:
    place = {"DEVCLUSTER_STATE": str(node_cluster.state), "DEVCLUSTER_PORT": "auto"}
    own = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    done = subprocess.run(
        ["bash", "-exo", "pipefail", "-c", typed()],
        cwd=ROOT,
        env={**own, **place},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    row = re.search(r"^sort-grpo +Succeeded .*$", done.stdout, re.MULTILINE)
    assert row is not None, done.stdout
    print(f"\n{row[0]}")
    assert (FETCHED / "model" / "model.safetensors").exists()
