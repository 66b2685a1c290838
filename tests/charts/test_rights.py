"""What the operator, and people with Kubernetes' own roles, may do: asked of an API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_operator.permissions import OWN, WATCHED

from ..cluster.definition import undefined
from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .access import Access, granted, may, rights
from .helm import RELEASE, Helm
from .installed import Place, own_place

pytestmark = pytest.mark.cluster
JOBS = "rlhf-operator.dev"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


@pytest.fixture(scope="module")
def place(helm: Helm, kubectl: Kubectl, kubeconfig: Path) -> Iterator[Place]:
    yield from own_place(Helm(helm.program, helm.home, kubeconfig), kubectl)


@pytest.fixture(scope="module")
def installed(place: Place, request: pytest.FixtureRequest) -> Iterator[Place]:
    """The place with a release of a case; the definition, which Helm leaves, goes with it."""
    with undefined(place.kubectl):
        place.helm("install", *place.arguments(request.param))
        yield place
        place.helm("uninstall", RELEASE, "--namespace", place.system)


everywhere = pytest.mark.parametrize("installed", ["smallest"], indirect=True)
in_two_namespaces = pytest.mark.parametrize("installed", ["namespaces"], indirect=True)


def operator(place: Place, name: str) -> str:
    return f"system:serviceaccount:{place.system}:{name}"


@everywhere
def test_it_may_do_what_is_listed_and_nothing_else(installed: Place) -> None:
    user = operator(installed, "rlhf-rlhf-operator")
    for namespace in (installed.other, "kube-system"):
        assert rights(installed.kubectl, namespace, user) == granted(WATCHED)
    own = rights(installed.kubectl, installed.system, user)
    assert own == granted(
        WATCHED + OWN, {"keySecret": "rlhf-rlhf-operator-key", "lease": "rlhf-rlhf-operator"}
    )


@everywhere
@pytest.mark.parametrize(
    ("access", "answer"),
    [
        (Access(JOBS, "rlhfjobs", "watch"), True),
        (Access(JOBS, "rlhfjobs", "patch"), False),
        (Access(JOBS, "rlhfjobs", "update"), False),
        (Access(JOBS, "rlhfjobs", "create"), False),
        (Access(JOBS, "rlhfjobs", "delete"), False),
        (Access(JOBS, "rlhfjobs/status", "patch"), True),
        (Access("ray.io", "rayclusters", "create"), True),
        (Access("ray.io", "rayclusters", "deletecollection"), False),
        (Access("apiextensions.k8s.io", "customresourcedefinitions", "watch"), False),
        (Access("apiextensions.k8s.io", "customresourcedefinitions", "patch"), False),
        (Access("", "secrets", "create"), True),
        (Access("", "secrets", "get"), False),
        (Access("", "secrets", "list"), False),
        (Access("", "configmaps", "patch"), False),
        (Access("networking.k8s.io", "networkpolicies", "get"), False),
        (Access("coordination.k8s.io", "leases", "patch"), False),
        (Access("", "pods", "create"), False),
        (Access("", "pods/exec", "create"), False),
        (Access("", "services/proxy", "get"), False),
        (Access("", "serviceaccounts/token", "create"), False),
        (Access("rbac.authorization.k8s.io", "clusterroles", "bind"), False),
        (Access("", "users", "impersonate"), False),
    ],
    ids=lambda value: f"{value.verb}-{value.resource}" if isinstance(value, Access) else None,
)
def test_the_api_server_answers_for_all_namespaces(
    installed: Place, access: Access, answer: bool
) -> None:
    user = operator(installed, "rlhf-rlhf-operator")
    assert may(installed.kubectl, user, access) is answer


@everywhere
@pytest.mark.parametrize(
    ("role", "verbs"),
    [("view", set(VERBS[:3])), ("edit", set(VERBS[:7])), ("admin", set(VERBS))],
)
def test_people_may_do_with_jobs_what_they_may_do_with_pods(
    installed: Place, role: str, verbs: set[str]
) -> None:
    kubectl, namespace = installed.kubectl, installed.team_a
    words = ("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}")
    kubectl(*words, f"--namespace={namespace}")

    def on(resource: str, group: str = JOBS) -> set[str]:
        known = rights(kubectl, namespace, role)
        return {verb for verb in VERBS if Access(group, resource, verb) in known}

    seconds, what = 30.0, f"role {role} has these verbs on jobs: {sorted(verbs)}"
    wait_until(lambda: on("rlhfjobs") == verbs, seconds, what)
    assert on("rlhfjobs/status") == set(VERBS[:3])
    assert on("rlhfjobs/finalizers") == set()
    assert on("rayclusters", "ray.io") == set(VERBS[:3])


@in_two_namespaces
def test_it_may_do_nothing_elsewhere(installed: Place) -> None:
    user = operator(installed, "rlhf")
    for namespace in (installed.team_a, installed.team_b):
        assert rights(installed.kubectl, namespace, user) == granted(WATCHED)
    for namespace in (installed.other, "kube-system"):
        assert rights(installed.kubectl, namespace, user) == set()
    own = rights(installed.kubectl, installed.system, user)
    assert own == granted(OWN, {"keySecret": "cluster-key", "lease": "rlhf-rlhf-operator"})
    for permission in WATCHED:
        access = Access(permission.group, permission.resources[0], permission.verbs[0])
        assert not may(installed.kubectl, user, access)


@in_two_namespaces
def test_of_all_secrets_it_reads_only_its_own_key(installed: Place) -> None:
    def reads(namespace: str, name: str) -> bool:
        access = Access("", "secrets", "get", name)
        return may(installed.kubectl, operator(installed, "rlhf"), access, namespace)

    assert reads(installed.system, "cluster-key")
    assert not reads(installed.system, "somebodys")
    assert not reads(installed.team_a, "cluster-key")
    assert not reads(installed.team_a, "job-1-auth")
