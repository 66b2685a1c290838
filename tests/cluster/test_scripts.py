"""What the scripts say and do without a cluster: building by pin, and refusing with a reason."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from pathlib import Path

import pytest

from .devcluster import SCRIPTS, DevCluster
from .session import possible

pytestmark = pytest.mark.slow

GO = """#!/usr/bin/env bash
# A stand-in for the compiler: notes what it was asked for and makes a program of that name.
set -euo pipefail
cd "$(dirname "$0")"
echo "$*" >>asked
case $1 in
  env) echo go1.26.0 ;;
  list) echo "$PWD/module" ;;
  mod) printf '\\t"Dir": "%s",\\n' "$PWD/module" ;;
  *)
    if [[ -f broken ]]; then echo "main.go:1: syntax error" >&2; exit 1; fi
    package=${*: -1} output=
    [[ $1 == install ]] || output=$(sed 's/.* -o \\([^ ]*\\) .*/\\1/' <<<"$*")
    package=${package%@*}
    output=${output:-$GOBIN/${package##*/}}
    printf '#!/bin/sh\\necho %s\\n' "$package" >"$output"
    chmod +x "$output"
    ;;
esac
"""

CONTROL_PLANE = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "helm",
    "ray-operator",
    "kwok",
]
"""What a cluster needs that has no node and no Kueue."""


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """A folder whose `go` stands in for the compiler."""
    folder = tmp_path / "go"
    for name in (
        "config/crd/bases/ray.io_rayclusters.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_workloads.yaml",
        "config/components/webhook/manifests.yaml",
        "example/prometheus-operator-crd/podmonitors.yaml",
    ):
        file = folder / "module" / name
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    (folder / "go").write_text(GO)
    (folder / "go").chmod(0o755)
    return folder


@pytest.fixture
def cluster(tmp_path: Path, go: Path) -> DevCluster:
    """Scripts that may be changed, with an empty cache."""
    environment = {
        "DEVCLUSTER_CACHE": str(tmp_path / "cache"),
        "KUBEBUILDER_ASSETS": "",
        "PATH": f"{go}{os.pathsep}{os.environ['PATH']}",
    }
    scripts = Path(shutil.copytree(SCRIPTS, tmp_path / "scripts"))
    return DevCluster(tmp_path / "state", environment, scripts)


def without_go(cluster: DevCluster, tmp_path: Path) -> DevCluster:
    """The same where Go is not installed."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            if program.name not in ("go", "gofmt") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    return DevCluster(cluster.state, {**cluster.environment, "PATH": str(tools)}, cluster.scripts)


def built(cluster: DevCluster, program: str) -> list[Path]:
    return sorted(Path(cluster.environment["DEVCLUSTER_CACHE"], program).glob(f"*/{program}"))


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_what_is_missing_is_built_once(cluster: DevCluster, go: Path) -> None:
    first = cluster.run("build.sh", "kwok", "etcd")
    assert first.returncode == 0
    assert "Building kwok v0.7.0" in first.stdout and "kwok: built in " in first.stdout
    assert len(built(cluster, "kwok")) == len(built(cluster, "etcd")) == 1
    asked = (go / "asked").read_text()
    assert "sigs.k8s.io/kwok/cmd/kwok@v0.7.0" in asked

    second = cluster.run("build.sh", "kwok", "etcd")
    assert "up to date" in second.stdout
    assert (go / "asked").read_text() == asked


def test_a_changed_pin_builds_anew_and_only_that(cluster: DevCluster) -> None:
    cluster.run("build.sh", "kwok", "etcd", "kube-scheduler")
    change(cluster.scripts / "pins.txt", "sigs.k8s.io/kwok@v0.7.0", "sigs.k8s.io/kwok@v0.7.1")
    sums = cluster.scripts / "modules" / "kubernetes" / "go.sum"
    sums.write_text(sums.read_text() + "\n")
    done = cluster.run("build.sh", "kwok", "etcd", "kube-scheduler")
    assert done.returncode == 0
    assert "Building kwok v0.7.1" in done.stdout and "Building kube-scheduler" in done.stdout
    assert "Building etcd" not in done.stdout
    assert len(built(cluster, "kwok")) == len(built(cluster, "kube-scheduler")) == 2


def test_what_shares_a_go_mod_keeps_its_own_version(cluster: DevCluster) -> None:
    done = cluster.run("build.sh", "kube-scheduler", "kueue", "coredns")
    assert done.returncode == 0
    for each in ("kube-scheduler v1.34.4", "kueue v0.15.0", "coredns v1.12.4"):
        assert f"Building {each}\n" in done.stdout


@pytest.mark.parametrize(
    ("program", "files"),
    [
        ("ray-operator", {"crds/ray.io_rayclusters.yaml"}),
        ("kueue", {"crds/kueue.x-k8s.io_workloads.yaml", "webhooks.yaml"}),
        ("monitoring-crds", {"monitoring-crds/podmonitors.yaml"}),
    ],
)
def test_resource_definitions_come_with_their_operator(
    cluster: DevCluster, program: str, files: set[str]
) -> None:
    assert cluster.run("build.sh", program).returncode == 0
    (made,) = built(cluster, program)
    found = {str(file.relative_to(made.parent)) for file in made.parent.rglob("*.yaml")}
    assert found == files


def test_what_the_tests_need_is_built_unless_something_else_is_named(
    cluster: DevCluster, go: Path
) -> None:
    assert cluster.run("build.sh").returncode == 0
    for program in ("kube-apiserver", "kueue", "helm", "kubeconform", "promtool", "actionlint"):
        assert len(built(cluster, program)) == 1, program
    assert not built(cluster, "kubelet")
    (promtool,) = [line for line in (go / "asked").read_text().splitlines() if "promtool" in line]
    assert "-tags remove_all_sd" in promtool


def test_a_failed_build_says_why_and_leaves_nothing_half_built(
    cluster: DevCluster, go: Path
) -> None:
    (go / "broken").touch()
    done = cluster.run("build.sh", "kwok")
    assert done.returncode == 4
    assert "main.go:1: syntax error" in done.stdout and "kwok could not be built" in done.stdout
    assert {file.name for file in Path(cluster.environment["DEVCLUSTER_CACHE"]).iterdir()} == {
        "kwok.log",
        "lock",
    }


@pytest.mark.parametrize(
    ("version", "taken"), [("Kubernetes v1.34.0", True), ("Kubernetes v1.31.0", False)]
)
def test_assets_serve_when_their_minor_version_does(
    cluster: DevCluster, tmp_path: Path, version: str, taken: bool
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for program in ("etcd", "kube-apiserver", "kubectl"):
        (assets / program).write_text(f"#!/bin/sh\necho {version}\n")
        (assets / program).chmod(0o755)
    environment = {**cluster.environment, "KUBEBUILDER_ASSETS": str(assets)}
    done = DevCluster(cluster.state, environment, cluster.scripts).run("up.sh", "--check")
    assert ("not built yet: kube-controller-manager" in done.stdout) is taken
    assert ("not built yet: etcd kube-apiserver" in done.stdout) is not taken


def test_a_machine_without_go_is_told_what_to_install(cluster: DevCluster, tmp_path: Path) -> None:
    done = without_go(cluster, tmp_path).run("up.sh")
    assert done.returncode == 4
    assert "go: not installed" in done.stdout and "install Go 1.21 or newer" in done.stdout
    assert not cluster.state.exists()


def test_the_check_names_what_is_not_built_and_how_to_build_it(cluster: DevCluster) -> None:
    done = cluster.run("up.sh", "--check")
    assert done.returncode == 4
    assert "not built yet: etcd kube-apiserver" in done.stdout
    assert "tools/devcluster/build.sh etcd kube-apiserver" in done.stdout
    assert not cluster.state.exists()


def test_without_kueue_a_session_of_tests_has_the_rest_of_its_cluster(cluster: DevCluster) -> None:
    cluster.run("build.sh", *CONTROL_PLANE)
    assert cluster.lacks() == "" and possible(cluster, "--kueue") == ()
    cluster.run("build.sh", "kueue")
    assert possible(cluster, "--kueue") == ("--kueue",)


def test_a_cluster_that_has_kueue_keeps_it(cluster: DevCluster) -> None:
    assert "kueue" not in cluster.lacks("--fake-nodes", "1")
    cluster.state.mkdir()
    (cluster.state / "arguments").write_text("--kueue --fake-nodes 1\n")
    assert "kueue" in cluster.lacks("--fake-nodes", "2")


def test_a_folder_with_other_files_is_neither_used_nor_removed(cluster: DevCluster) -> None:
    cluster.state.mkdir()
    (cluster.state / "thesis.tex").write_text("mine")
    done = cluster.run("up.sh")
    assert done.returncode == 2 and "files that are no cluster's" in done.stdout
    cluster.down()
    assert [file.name for file in cluster.state.iterdir()] == ["thesis.tex"]


def test_a_taken_port_is_named_before_anything_starts(cluster: DevCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment = {**cluster.environment, "DEVCLUSTER_PORT": str(port)}
        done = DevCluster(cluster.state, environment, cluster.scripts).run("up.sh")
    assert done.returncode == 4
    assert f"another program listens on port {port}" in done.stdout
    assert "DEVCLUSTER_PORT=auto" in done.stdout
    assert not (cluster.state / "pids").exists()
    cluster.down()
    assert not cluster.state.exists()


@pytest.mark.parametrize("port", ["80", "65530", "some"])
def test_a_port_that_cannot_be_is_named(cluster: DevCluster, port: str) -> None:
    environment = {**cluster.environment, "DEVCLUSTER_PORT": port}
    done = DevCluster(cluster.state, environment, cluster.scripts).run("up.sh")
    assert done.returncode == 2 and f"DEVCLUSTER_PORT: got {port}, allowed auto" in done.stdout


@pytest.mark.parametrize("script", ["up.sh", "down.sh"])
def test_one_script_at_a_time_works_on_a_cluster(cluster: DevCluster, script: str) -> None:
    cluster.run("build.sh")
    cluster.state.mkdir()
    (cluster.state / "arguments").write_text("--fake-nodes 1\n")
    folder = os.open(cluster.state, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        done = cluster.run(script)
    finally:
        os.close(folder)
    assert done.returncode == 4 and "another script is working on the cluster" in done.stdout
    assert (cluster.state / "arguments").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--nodes"], "no such argument: --nodes"),
        (["--fake-nodes", "many"], "--fake-nodes needs a number, got many"),
        (["--fake-nodes"], "--fake-nodes needs a number, got nothing"),
        (["--fake-gpus", "2"], "add --node"),
        (["--kueue", "--queues"], "no such argument: --queues"),
    ],
)
def test_a_wrong_argument_is_named(cluster: DevCluster, arguments: list[str], reason: str) -> None:
    done = cluster.run("up.sh", *arguments)
    assert done.returncode == 2 and reason in done.stdout
    assert not cluster.state.exists()


def test_without_a_cluster_there_is_nothing_to_say_or_stop(cluster: DevCluster) -> None:
    for script in ("status.sh", "down.sh"):
        done = cluster.run(script)
        assert done.returncode == 0 and "No cluster in" in done.stdout


def test_images_are_not_begun_where_their_layers_have_no_room(
    cluster: DevCluster, go: Path
) -> None:
    (go / "df").write_text("#!/bin/sh\necho Avail\necho '   2'\n")
    (go / "df").chmod(0o755)
    done = cluster.run("images/build.sh")
    cache = cluster.environment["DEVCLUSTER_CACHE"]
    assert done.returncode == 4 and f"{cache}: got 2 GB free, needed 18 GB" in done.stdout
    assert "set DEVCLUSTER_CACHE" in done.stdout and "==> Making" not in done.stdout
