"""A volume for checkpoints on the one real node: a folder of this machine, behind a claim."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..cluster.kubectl import Kubectl

GROUP = 1000
"""The group of a job's pods."""
CLAIM = "checkpoints"


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
        """Make both, and wait until they belong together.

        The folder is as the kubelet leaves a volume that heeds fsGroup: the group's, and what is
        made in it also. A job's own folder in it, made by the kubelet as root, is so writable.
        """
        self.folder.mkdir(parents=True)
        os.chown(self.folder, 0, GROUP)
        self.folder.chmod(0o2770)
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
        shutil.rmtree(self.folder)
