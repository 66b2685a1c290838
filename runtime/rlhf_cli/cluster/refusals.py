"""Convert error responses of the API server to errors of the command. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_cli.cluster.errors import (
    AccessDenied,
    ClusterError,
    ClusterUnreachable,
    FieldsConflict,
    NotInstalled,
    ObjectNotFound,
    ObjectRefused,
)
from rlhf_kube.kinds import Kind

INSTALL = (
    "install the operator's chart (charts/rlhf-operator), or ask the cluster's administrator; "
    "`kubectl get crd rlhfjobs.rlhf-operator.dev` shows whether the CRD is there"
)
_PREFIX = re.compile(r'^(?:Forbidden|Invalid value: (?:"(?:[^"\\]|\\.)*"|\S+)): ')
_MANAGER = re.compile(r'conflict with "([^"]*)"')
_UNKNOWN_FIELD = re.compile(r"\.?(\S+): field not declared in schema")
_UNALLOWED = re.compile(r"cannot \w+ resource")
_MAX_SHOWN = 20


@dataclass(frozen=True)
class Refusal:
    """An error response of the API server."""

    status: int
    message: str
    reason: str = ""
    causes: tuple[tuple[str, str, str], ...] = ()
    """Field, kind of problem and message of each cause."""
    name: str = ""
    """The object's name, if the response has it."""
    kind: str = ""


def parse_refusal(status: int, body: bytes) -> Refusal:
    """Parse a response. It should be a Status object, but proxies answer with other text."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != "Status":
        text = body.decode("utf-8", "replace").strip().partition("\n")[0][:200]
        return Refusal(status, text or "no explanation")
    details: Mapping[str, Any] = document.get("details") or {}
    causes = tuple(
        (str(cause.get("field", "")), str(cause.get("reason", "")), str(cause.get("message", "")))
        for cause in details.get("causes") or ()
    )
    return Refusal(
        status,
        str(document.get("message", "")),
        str(document.get("reason", "")),
        causes,
        str(details.get("name", "")),
        str(details.get("kind", "")),
    )


def refusal_error(refusal: Refusal, kind: Kind | None, doing: str, server: str) -> ClusterError:
    """Choose the error for a response.

    Args:
        kind: the kind of the requested object, if any.
        doing: the request in words, such as `read pods in team-a`.
        server: the API server's address.
    """
    status, message = refusal.status, refusal.message
    if status == 401:
        return AccessDenied(
            f"the cluster does not know you: got {message} (401) from {server}; log in again, or "
            "choose another --context"
        )
    # 403 also answers for quotas and admission policies; only RBAC's message names a resource.
    if status == 403 and _UNALLOWED.search(message):
        return AccessDenied(f"you may not {doing}: got {message}; ask for a role that allows it")
    if status == 404:
        return _missing_error(refusal, kind, doing)
    # 409 also answers for objects that exist already.
    if status == 409 and any(what == "FieldManagerConflict" for _, what, _ in refusal.causes):
        return _conflict(refusal)
    if match := _UNKNOWN_FIELD.search(message):
        return ObjectRefused(
            f"the cluster refuses to {doing}: it has no field {match[1]}; its RLHFJob CRD is of "
            "another version than this command; install the same version of the command"
        )
    if status in (400, 403, 409, 413, 415, 422):
        return ObjectRefused(_refused(refusal, doing))
    return ClusterUnreachable(
        f"the cluster could not {doing}: got {status}: {message} from {server}; try again"
    )


def refusal_reasons(refusal: Refusal) -> list[str]:
    """Each cause as `field: message`."""
    reasons = []
    for field, _, message in refusal.causes:
        text = _PREFIX.sub("", message)
        # Many messages begin with their field already.
        is_named = field in ("", "<nil>") or text.startswith((f"{field} ", f"{field}:"))
        reasons.append(text if is_named else f"{field}: {text}")
    return list(dict.fromkeys(reasons))


def _refused(refusal: Refusal, doing: str) -> str:
    reasons = refusal_reasons(refusal) or [refusal.message]
    if len(reasons) == 1:
        return f"the cluster refuses to {doing}: {reasons[0]}"
    return f"the cluster refuses to {doing}:\n" + _list(reasons)


def _conflict(refusal: Refusal) -> FieldsConflict:
    lines = [f"{field.lstrip('.')}: {message}" for field, _, message in refusal.causes]
    managers = (_MANAGER.search(message) for _, _, message in refusal.causes)
    return FieldsConflict(
        "other field managers own fields that this would change; give --force-conflicts to take "
        "them over:\n" + _list(lines),
        frozenset(match[1] for match in managers if match),
    )


def _list(lines: Sequence[str]) -> str:
    shown = [f"  {line}" for line in lines[:_MAX_SHOWN]]
    more = len(lines) - _MAX_SHOWN
    return "\n".join([*shown, f"  and {more} more"] if more > 0 else shown)


def _missing_error(refusal: Refusal, kind: Kind | None, doing: str) -> ClusterError:
    if refusal.kind == "namespaces":
        return ObjectNotFound(
            f"cannot {doing}: got {refusal.message}; give another -n, or create it: "
            f"kubectl create namespace {refusal.name}"
        )
    if refusal.name or kind is None:
        return ObjectNotFound(f"cannot {doing}: {refusal.message}")
    if kind == Kind.JOB:
        return NotInstalled(
            f"this cluster does not know RLHFJobs: got {refusal.message}; {INSTALL}"
        )
    return ObjectNotFound(f"this cluster has no {kind.resource}: got {refusal.message}")
