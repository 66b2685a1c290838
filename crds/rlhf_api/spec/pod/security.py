"""Security context of pods, within Kubernetes' restricted profile."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import Contract, Text
from rlhf_api.rules import Rule, Violation, violation_if

# A user or group that is not root.
_Id = Annotated[int, Field(ge=1, le=2**31 - 1)]

_RESTRICTED = "the restricted profile, which all containers of a job meet, does not allow it"


def _file_suits_type(profile: SeccompProfile) -> list[Violation]:
    has_file, is_local = profile.localhost_profile is not None, profile.type == "Localhost"
    return violation_if(has_file != is_local, profile.localhost_profile or "none")


class SeccompProfile(Contract):
    """A filter of system calls."""

    type: Literal["RuntimeDefault", "Localhost"] = "RuntimeDefault"
    """Source of the filter: RuntimeDefault, or a file of the node (Localhost)."""
    localhost_profile: Text | None = None
    """The file, below the kubelet's folder of profiles, for Localhost."""

    validations: ClassVar = (
        Rule(
            holds="",
            what="a profile's file and another type than Localhost, or Localhost without one",
            do="change type or localhostProfile",
            field=".localhostProfile",
            check=_file_suits_type,
        ),
    )


class PodSecurity(Contract):
    """Users of a pod's processes and files. All containers have a read-only image, no capabilities
    and no more rights than their parent, whatever stands here."""

    reserved: ClassVar = {
        "privileged": _RESTRICTED,
        "allowPrivilegeEscalation": _RESTRICTED,
        "capabilities": _RESTRICTED,
        "procMount": _RESTRICTED,
        "sysctls": _RESTRICTED,
        "windowsOptions": "the runtime runs on Linux",
        "readOnlyRootFilesystem": "the image is always read-only; write to a volume, or to /tmp",
    }

    run_as_non_root: Literal[True] = True
    """Always true: no process of a job is root."""
    run_as_user: _Id | None = None
    """User of all processes. Default: 1000."""
    run_as_group: _Id | None = None
    """Group of all processes. Default: 1000."""
    fs_group: _Id | None = None
    """Group of files on volumes. Default: 1000."""
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    """Change of owners on volumes: if that of the root differs (OnRootMismatch), or Always, which
    takes long on large volumes. Default: OnRootMismatch."""
    supplemental_groups: Annotated[tuple[_Id, ...], Field(max_length=32)] = ()
    """Further groups of all processes, such as those of files on a volume."""
    seccomp_profile: SeccompProfile | None = None
    """Filter of system calls. Default: RuntimeDefault."""
