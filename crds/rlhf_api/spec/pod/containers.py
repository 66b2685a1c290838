"""Containers beside Ray's, where the chart allows them, and variables of whole objects."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import PREFIX_PATTERN, AbsolutePath, Contract, Name, ObjectName, Text
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.spec.environment import Environment
from rlhf_api.spec.pod.resources import ContainerResources
from rlhf_api.spec.pod.volumes import UNIQUE_MOUNTS, VolumeMounts


class VariablesReference(Contract):
    """A Secret or ConfigMap in the job's namespace, each key of which is a variable."""

    name: ObjectName
    """The object's name."""
    optional: bool = False
    """If true, pods start without the object."""


class VariablesSource(Alternatives):
    """Variables from all keys of an object: exactly one of configMapRef, secretRef."""

    alternatives: ClassVar = ("config_map_ref", "secret_ref")

    prefix: Annotated[str, Field(max_length=256, pattern=PREFIX_PATTERN)] = ""
    """Text before the names of keys."""
    config_map_ref: VariablesReference | None = None
    """A ConfigMap."""
    secret_ref: VariablesReference | None = None
    """A Secret."""


# Objects whose keys are variables.
VariablesSources = Annotated[tuple[VariablesSource, ...], Field(max_length=32)]

_Texts = Annotated[tuple[Annotated[str, Field(max_length=32 * 1024)], ...], Field(max_length=256)]

_PROBE = "a probe of another container would end or hold up the job's pod"


class ExtraContainer(Contract):
    """A container beside Ray's. It has the restricted security context of all containers, and no
    GPU unless its limits name one."""

    reserved: ClassVar = {
        "securityContext": "all containers of a job have the restricted one; "
        "pod.securityContext sets the user",
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "startupProbe": _PROBE,
        "lifecycle": "hooks of other containers would delay the end of the job's pod",
        "restartPolicy": "a sidecar is started again, an init container is not",
        "ports": "containers listen without it; other pods reach only Ray's",
    }

    name: Name
    """Its name, unique in the pod."""
    image: Text
    """Image reference."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Pull policy of nodes. Default: Always for the tag latest, else IfNotPresent."""
    command: _Texts = ()
    """Program and its first arguments. Default: the image's."""
    args: _Texts = ()
    """Arguments. Default: the image's."""
    working_dir: AbsolutePath | None = None
    """Folder in which it starts. Default: the image's."""
    env: Environment = ()
    """Environment variables."""
    env_from: VariablesSources = ()
    """Objects whose keys are variables."""
    resources: ContainerResources = ContainerResources()
    """Requests and limits."""
    volume_mounts: VolumeMounts = ()
    """Volumes of the pod that it mounts, with their paths."""

    validations: ClassVar = (UNIQUE_MOUNTS,)


# Containers beside Ray's.
ExtraContainers = Annotated[tuple[ExtraContainer, ...], Field(max_length=16)]
