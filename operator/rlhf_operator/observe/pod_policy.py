"""Fields of pods that a job may set only where the chart allows it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import normpath

from rlhf_api.problems import FieldPath, Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_operator.config import PodPolicy
from rlhf_operator.decide.observed import Refusal


def find_pods_not_allowed(job: RLHFJob, policy: PodPolicy | None) -> Refusal | None:
    """Return the fields of pods that the chart does not let this job set, with what to do.

    Args:
        job: as written by the user, without the chart's defaults.
        policy: of the chart. None: it allows nothing.
    """
    policy = policy or PodPolicy()
    resources = job.spec.resources
    templates: list[tuple[FieldPath, PodTemplate]] = [
        (("pod",), resources.pod),
        (("headPod",), resources.head_pod),
    ]
    templates += [
        (("nodePools", index, "pod"), pool.pod) for index, pool in enumerate(resources.node_pools)
    ]
    problems = [
        str(problem)
        for path, template in templates
        for problem in _problems(("spec", "resources", *path), template, policy)
    ]
    return Refusal("PodNotAllowed", "\n".join(problems)) if problems else None


def _problems(path: FieldPath, pod: PodTemplate, policy: PodPolicy) -> Iterator[Problem]:
    for index, volume in enumerate(pod.volumes):
        if volume.host_path is not None and not _is_allowed_path(volume.host_path.path, policy):
            yield _problem(
                (*path, "volumes", index, "hostPath", "path"),
                "a path of nodes that this cluster's operator does not allow",
                volume.host_path.path,
                policy.host_paths,
                "hostPaths",
            )
    account = pod.service_account_name
    if account is not None and account not in policy.service_account_names:
        yield _problem(
            (*path, "serviceAccountName"),
            "a service account that this cluster's operator does not allow",
            account,
            policy.service_account_names,
            "serviceAccountNames",
        )
    for section, containers in (
        ("initContainers", pod.init_containers),
        ("sidecars", pod.sidecars),
    ):
        if containers and not policy.extra_containers:
            names = ", ".join(container.name for container in containers)
            yield _problem(
                (*path, section),
                "containers that this cluster's operator does not allow",
                names,
                (),
                "extraContainers",
            )


def _problem(path: FieldPath, what: str, got: str, allowed: tuple[str, ...], value: str) -> Problem:
    return Problem(
        path,
        what,
        got=got,
        allowed=", ".join(allowed) or "none",
        do=f"remove it, or ask for the chart's podPolicy.{value}",
    )


def _is_allowed_path(path: str, policy: PodPolicy) -> bool:
    # A path with .. is refused before; POSIX keeps two leading slashes.
    normalized = "/" + normpath(path).lstrip("/")
    folders = ["/" + normpath(folder).lstrip("/") for folder in policy.host_paths]
    return any(f"{normalized}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)
