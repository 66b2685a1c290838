"""A volume for checkpoints on the one real node: a folder of this machine, behind a claim."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..cluster.kubectl import Kubectl

USER = 1000
"""The user of a job's pods."""
CLAIM = "checkpoints"
SIZE = "512m"
FILLER = "filler"


@dataclass(frozen=True)
class CheckpointVolume:
    """A namespace's claim of the name `checkpoints`, ReadWriteMany, and the volume behind it."""

    namespace: str
    volumes: Path
    """The folder of this machine that has a folder for each volume."""

    @property
    def folder(self) -> Path:
        return self.volumes / self.namespace

    def provide(self, kubectl: Kubectl) -> None:
        """Make both, and wait until they belong together. Nobody but the pods' user may write."""
        self.folder.mkdir(parents=True, mode=0o755)
        # A file system of its own can be full.
        words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "tmpfs", str(self.folder)]
        subprocess.run(words, check=True)
        os.chown(self.folder, USER, USER)
        access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        kubectl.apply(
            self.namespace,
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": self.namespace},
                "spec": access
                | {
                    "capacity": {"storage": "10Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": self.namespace, "name": CLAIM},
                    "hostPath": {"path": str(self.folder), "type": "Directory"},
                },
            },
        )
        kubectl.apply(
            self.namespace,
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": CLAIM},
                "spec": access
                | {
                    "volumeName": self.namespace,
                    "resources": {"requests": {"storage": "10Gi"}},
                },
            },
        )
        kubectl.wait(self.namespace, "jsonpath={.status.phase}=Bound", f"pvc/{CLAIM}")

    def remove(self, kubectl: Kubectl) -> None:
        """Remove the volume; the claim goes with its namespace."""
        kubectl("delete", f"persistentvolume/{self.namespace}", "--wait=false")
        # Lazily: the kubelet may still hold it for a pod that has just ended.
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        self.folder.rmdir()

    def fill(self) -> None:
        """Fill all free space."""
        with (self.folder / FILLER).open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 12))

    def empty(self) -> None:
        """Free the space that `fill` took."""
        (self.folder / FILLER).unlink()
