"""Parts of pods that a job's own templates of pods set, under the restricted profile. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_api.base import Contract
from rlhf_api.spec.environment import EnvironmentVariable
from rlhf_api.spec.pod.containers import ExtraContainer
from rlhf_api.spec.pod.template import PodTemplate

USER_ID = 1000
"""User of the image; files on volumes belong to its group."""
_COPIED = (
    *("affinity", "scheduler_name", "priority_class_name", "runtime_class_name"),
    *("service_account_name", "termination_grace_period_seconds"),
)
"""Fields of a pod's spec that are copied if they are set."""


def as_written(model: Contract) -> Any:
    """Return a model as Kubernetes writes it, without unset fields."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def pod_fields(pod: PodTemplate) -> dict[str, Any]:
    """Return the fields of a pod's spec that a template sets."""
    copied = as_written(pod)
    names = [str(PodTemplate.model_fields[name].alias) for name in _COPIED]
    fields = {name: copied[name] for name in names if name in copied}
    fields |= {
        # User code runs in these pods: without a request it gets no access to the API server.
        "automountServiceAccountToken": pod.automount_service_account_token is True,
        "securityContext": _pod_security(pod),
    }
    for name in ("nodeSelector", "tolerations", "topologySpreadConstraints"):
        if copied[name]:
            fields[name] = copied[name]
    return fields


def _pod_security(pod: PodTemplate) -> Mapping[str, Any]:
    own = as_written(pod.security_context)
    groups = own.pop("supplementalGroups")
    return {
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        # A recursive change of owner on a large volume would delay every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
        **({"supplementalGroups": groups} if groups else {}),
        **own,
    }


def isolation(pod: PodTemplate) -> Mapping[str, Any]:
    """Return the security context of all containers of a pod."""
    profile = pod.security_context.seccomp_profile
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"} if profile is None else as_written(profile),
    }


def variables(entries: Sequence[EnvironmentVariable]) -> Iterator[Mapping[str, Any]]:
    """Yield environment variables as Kubernetes writes them."""
    for variable in entries:
        source = variable.value_from
        if source is None:
            yield {"name": variable.name, "value": variable.value}
        else:
            yield {"name": variable.name, "valueFrom": as_written(source)}


def sidecars(pod: PodTemplate) -> list[Mapping[str, Any]]:
    """Return the containers that run beside Ray's, as init containers that do not end."""
    # Kubernetes ends such containers after the others, and a pod is ready without probes of them.
    return [
        {**_extra_container(container, pod), "restartPolicy": "Always"}
        for container in pod.sidecars
    ]


def further_init_containers(pod: PodTemplate) -> list[Mapping[str, Any]]:
    """Return the init containers of a template."""
    return [_extra_container(container, pod) for container in pod.init_containers]


def _extra_container(container: ExtraContainer, pod: PodTemplate) -> Mapping[str, Any]:
    return {
        **as_written(container),
        "env": [*variables(container.env)],
        "securityContext": isolation(pod),
    }
