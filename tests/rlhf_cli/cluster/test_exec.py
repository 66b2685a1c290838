"""Commands in pods through the real client: over a real WebSocket, run by real processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_cli.cluster.connect import ClusterTarget, connect
from rlhf_cli.cluster.downloading import FetchItem, download
from rlhf_cli.cluster.run_files import PodFiles
from rlhf_kube.errors import CommandFailed, NotFound, StreamBroken
from rlhf_kube.protocol import Cluster

from ...kubeconfigs import config, written
from .exec_server import exec_server


class Silent:
    """Shows nothing."""

    def begin(self, path: str, size: int) -> None:
        pass

    def arrived(self, size: int) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with exec_server() as address:
        yield connect(ClusterTarget(written(tmp_path / "config", config(address))))


def test_output_arrives_byte_by_byte_as_it_was_written(cluster: Cluster) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 5000)"
    pieces = list(cluster.execute("team", "head", "ray", ["python3", "-c", script]))
    assert b"".join(pieces) == bytes(range(256)) * 5000 and len(pieces) > 50


def test_words_of_a_command_stay_as_they_are(cluster: Cluster) -> None:
    words = ["a b", "$(x)", "ü&c=d", "-n", ""]
    command = ["python3", "-c", "import sys; print(sys.argv[1:])", *words]
    assert b"".join(cluster.execute("team", "head", "ray", command)).decode() == f"{words}\n"


def test_a_command_that_fails_says_how(cluster: Cluster) -> None:
    script = "echo out; echo no such thing >&2; exit 7"
    pieces = cluster.execute("team", "head", "ray", ["sh", "-c", script])
    assert next(pieces) == b"out\n"
    with pytest.raises(CommandFailed, match="exit code 7: no such thing"):
        next(pieces)


def test_a_pod_that_is_not_there_is_told(cluster: Cluster) -> None:
    with pytest.raises(NotFound, match='pods "none" not found'):
        list(cluster.execute("team", "none", "ray", ["true"]))


def test_a_connection_that_dies_has_broken(cluster: Cluster) -> None:
    with pytest.raises(StreamBroken):
        list(cluster.execute("team", "dying", "ray", ["seq", "100000"]))


def test_a_server_that_is_not_there_has_broken(tmp_path: Path) -> None:
    with exec_server() as address:
        pass
    gone = connect(ClusterTarget(written(tmp_path / "config", config(address))))
    with pytest.raises(StreamBroken):
        list(gone.execute("team", "head", "ray", ["true"]))


def test_a_file_arrives_whole_over_connections_that_die(cluster: Cluster, tmp_path: Path) -> None:
    content = bytes(range(256)) * 600
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "weights").write_bytes(content)
    listing = PodFiles(cluster, "team", "head", "ray", str(tmp_path / "run"))
    dying = PodFiles(cluster, "team", "dying", "ray", str(tmp_path / "run"))
    dying.list = listing.list  # type: ignore[method-assign]
    download(dying, [FetchItem("model")], tmp_path / "out", Silent(), pause=lambda _: None)
    arrived = (tmp_path / "out" / "model" / "weights").read_bytes()
    assert hashlib.sha256(arrived).digest() == hashlib.sha256(content).digest()
