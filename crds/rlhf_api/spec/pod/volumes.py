"""Volumes of pods, and where containers mount them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from posixpath import normpath
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import (
    FOLDER_PATTERN,
    KEY_PATTERN,
    MEDIUM_PATTERN,
    AbsolutePath,
    Annotations,
    Contract,
    Labels,
    Name,
    ObjectName,
)
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.on_cluster import HOME_FOLDER, HUB_FOLDER, OWN_VOLUMES, RUN_FOLDER
from rlhf_api.quantity import Quantity
from rlhf_api.rules import Rule, Violation

# Folders in which nothing else may be mounted.
CLOSED_FOLDERS = ("/etc/rlhf", RUN_FOLDER, HUB_FOLDER, "/dev/shm")
# Folders below which more may be mounted, as the pod may write there.
OPEN_FOLDERS = (HOME_FOLDER, "/tmp")
# The kernel's own files.
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")

_Folder = Annotated[str, Field(min_length=1, max_length=1024, pattern=FOLDER_PATTERN)]
_Mode = Annotated[int, Field(ge=0, le=0o777)]


class KeyFile(Contract):
    """A key of a ConfigMap or Secret as a file."""

    key: Annotated[str, Field(min_length=1, max_length=253, pattern=KEY_PATTERN)]
    """The key."""
    path: _Folder
    """The file's path in the volume."""
    mode: _Mode | None = None
    """Permissions of the file. Default: defaultMode."""


_KeyFiles = Annotated[tuple[KeyFile, ...], Field(max_length=64)]


class ConfigMapVolume(Contract):
    """Files from a ConfigMap in the job's namespace."""

    name: ObjectName
    """The ConfigMap's name."""
    items: _KeyFiles = ()
    """Keys that become files. Default: all."""
    default_mode: _Mode | None = None
    """Permissions of the files. Default: 0644."""
    optional: bool = False
    """If true, pods start without the ConfigMap."""


class SecretVolume(Contract):
    """Files from a Secret in the job's namespace."""

    secret_name: ObjectName
    """The Secret's name."""
    items: _KeyFiles = ()
    """Keys that become files. Default: all."""
    default_mode: _Mode | None = None
    """Permissions of the files. Default: 0644."""
    optional: bool = False
    """If true, pods start without the Secret."""


class ClaimVolume(Contract):
    """A claim in the job's namespace, such as one with data or models."""

    claim_name: ObjectName
    """The claim's name. Its access mode must allow all pods that mount it."""
    read_only: bool = False
    """If true, no pod of the job can write to it."""


class EmptyDir(Contract):
    """An empty folder of the pod."""

    medium: Annotated[str, Field(max_length=32, pattern=MEDIUM_PATTERN)] = ""
    """Its medium: the node's disk (empty), Memory, or HugePages."""
    size_limit: Quantity | None = None
    """Largest size of its files. Default: none."""


class VolumeRequests(Contract):
    """Size of a claim."""

    storage: Quantity
    """Size of the volume, such as 100Gi."""


class VolumeResources(Contract):
    """Resources of a claim."""

    requests: VolumeRequests
    """Size of the volume."""


class EphemeralClaimSpec(Contract):
    """The claim of an ephemeral volume."""

    access_modes: Annotated[
        tuple[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"], ...],
        Field(min_length=1, max_length=4),
    ] = ("ReadWriteOnce",)
    """Access modes of the volume."""
    storage_class_name: ObjectName | None = None
    """Storage class of the volume. Default: the cluster's."""
    resources: VolumeResources
    """Size of the volume."""


class EphemeralClaimMetadata(Contract):
    """Labels and annotations of an ephemeral volume's claim."""

    labels: Labels = {}
    """Labels of the claim."""
    annotations: Annotations = {}
    """Annotations of the claim."""


class EphemeralClaim(Contract):
    """The template of an ephemeral volume's claim."""

    metadata: EphemeralClaimMetadata = EphemeralClaimMetadata()
    """Labels and annotations of the claim."""
    spec: EphemeralClaimSpec
    """The claim."""


class EphemeralVolume(Contract):
    """A volume of the pod alone, made and deleted with it."""

    volume_claim_template: EphemeralClaim
    """Its claim."""


class HostPathVolume(Contract):
    """A folder or file of the node, where the chart allows it."""

    path: AbsolutePath
    """Its path on the node."""
    type: Literal[
        "",
        "DirectoryOrCreate",
        "Directory",
        "FileOrCreate",
        "File",
        "Socket",
        "CharDevice",
        "BlockDevice",
    ] = ""
    """Required kind of the path, such as Directory. Default: any."""


class Volume(Alternatives):
    """A volume of pods: exactly one source is set."""

    alternatives: ClassVar = (
        *("persistent_volume_claim", "config_map", "secret", "empty_dir", "ephemeral"),
        "host_path",
    )

    name: Name
    """Its name, which mounts refer to; unique in the pod."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim in the job's namespace."""
    config_map: ConfigMapVolume | None = None
    """Files from a ConfigMap."""
    secret: SecretVolume | None = None
    """Files from a Secret."""
    empty_dir: EmptyDir | None = None
    """An empty folder of the pod."""
    ephemeral: EphemeralVolume | None = None
    """A volume of the pod alone."""
    host_path: HostPathVolume | None = None
    """A folder or file of the node, where the chart allows it."""


class VolumeMount(Contract):
    """A volume, or a part of it, at a path in a container."""

    name: Name
    """The volume's name."""
    mount_path: AbsolutePath
    """Path in the container, such as /data."""
    sub_path: _Folder | None = None
    """Folder or file of the volume. Default: its root."""
    read_only: bool = False
    """If true, the container cannot write to it."""


# Volumes of pods.
Volumes = Annotated[tuple[Volume, ...], Field(max_length=32)]
# Mounts of a container.
VolumeMounts = Annotated[tuple[VolumeMount, ...], Field(max_length=64)]


def repeated(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield names that occur before in a list, with their indices."""
    for index, name in enumerate(names):
        if name in names[:index]:
            yield index, name


def own_volume_names(volumes: Sequence[Volume]) -> Iterator[Violation]:
    """Yield volumes with a name that the operator uses."""
    for index, volume in enumerate(volumes):
        if volume.name in OWN_VOLUMES:
            yield Violation(volume.name, ("volumes", index, "name"))


def covered_folders(mounts: Sequence[VolumeMount]) -> Iterator[Violation]:
    """Yield mounts at paths that the operator's own mounts need."""
    for index, mount in enumerate(mounts):
        path = normpath(mount.mount_path)
        # POSIX keeps two leading slashes.
        if is_reserved_path("/" + path.lstrip("/")):
            yield Violation(mount.mount_path, ("volumeMounts", index, "mountPath"))


def is_reserved_path(path: str) -> bool:
    """True if nothing may be mounted at a normalized path of Ray's container."""
    folders = (*CLOSED_FOLDERS, *OPEN_FOLDERS, *SYSTEM_FOLDERS)
    is_above = any(_is_within(folder, path) for folder in folders)
    return is_above or any(
        _is_within(path, folder) for folder in (*CLOSED_FOLDERS, *SYSTEM_FOLDERS)
    )


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


UNIQUE_MOUNTS = Rule(
    holds="",
    what="a path with two mounts",
    do="remove one",
    check=lambda self: [
        Violation(path, ("volumeMounts", index, "mountPath"))
        for index, path in repeated([normpath(mount.mount_path) for mount in self.volume_mounts])
    ],
)
