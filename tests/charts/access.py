"""Who may do what, as an API server says it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_operator.permissions import Permission

from ..cluster.kubectl import Kubectl


@dataclass(frozen=True)
class Access:
    """One verb on one kind of resource."""

    group: str
    resource: str
    verb: str
    name: str = ""
    """The only object that it is about; empty: all."""


def granted(
    permissions: tuple[Permission, ...], names: Mapping[str, str] | None = None
) -> set[Access]:
    """What permissions are meant to give; `names` are those of the operator's Secret and Lease."""
    return {
        Access(each.group, resource, verb, (names or {}).get(each.named, ""))
        for each in permissions
        for resource, verb in itertools.product(each.resources, each.verbs)
    }


def rights(kubectl: Kubectl, namespace: str, account: str) -> set[Access]:
    """All that an account may do in a namespace, besides what every account may."""
    own = _rules(kubectl, namespace, account)
    return own - _rules(kubectl, namespace, "system:serviceaccount:default:nobody")


def _rules(kubectl: Kubectl, namespace: str, user: str) -> set[Access]:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    words = ("create", "--filename=-", "--output=json", "--validate=false", f"--as={user}")
    answer = json.loads(kubectl(*words, stdin=json.dumps(review)))
    return {
        Access(*each)
        for rule in answer["status"]["resourceRules"]
        for each in itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames") or [""]
        )
    }


def may(kubectl: Kubectl, user: str, access: Access, namespace: str = "") -> bool:
    """The API server's answer about one request; without a namespace: about all of them."""
    resource, _, subresource = access.resource.partition("/")
    attributes = {
        "namespace": namespace,
        "group": access.group,
        "resource": resource,
        "subresource": subresource,
        "verb": access.verb,
        "name": access.name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    words = ("create", "--filename=-", "--output=jsonpath={.status.allowed}")
    answer = kubectl(*words, stdin=json.dumps(review))
    assert answer in ("true", "false"), answer
    return answer == "true"
