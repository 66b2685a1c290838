"""Answers of the API server that refuse a request, as errors. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_kube.errors import (
    AlreadyExists,
    Conflict,
    FieldsConflict,
    Forbidden,
    Invalid,
    KubeError,
    ListExpired,
    NotAdmitted,
    NotFound,
    NotInstalled,
    UnknownField,
    Unreachable,
)
from rlhf_kube.kinds import Kind

INSTALL = (
    "install the operator's chart (charts/rlhf-operator), or ask the cluster's administrator; "
    "`kubectl get crd rlhfjobs.rlhf-operator.dev` shows whether the CRD is there"
)
_TEMPORARY = (408, 410, 429)
"""410: a list that lasted too long."""
_PREFIX = re.compile(r'^(?:Forbidden|Invalid value: (?:"(?:[^"\\]|\\.)*"|\S+)): ')
_MANAGER = re.compile(r'conflict with "([^"]*)"')
_UNKNOWN_FIELD = re.compile(r"\.?(\S+): field not declared in schema")
_NO_ROLE = re.compile(r"cannot \w+ resource")
_MAX_SHOWN = 20


@dataclass(frozen=True)
class Refusal:
    """An answer of the API server that is no success."""

    status: int
    message: str
    reason: str = ""
    causes: tuple[tuple[str, str, str], ...] = ()
    """Field, kind of problem and message of each cause."""
    name: str = ""
    """The object's name, if the answer has it."""
    kind: str = ""
    following: str = ""
    """Token for the rest of a list whose version has expired."""


def parse_refusal(status: int, body: bytes) -> Refusal:
    """Parse an answer. It should be a Status object, but proxies answer with other text."""
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
        str((document.get("metadata") or {}).get("continue", "")),
    )


def refusal_error(
    refusal: Refusal, kind: Kind | None, doing: str, server: str, subject: str = "you"
) -> KubeError:
    """Choose the error for an answer.

    Args:
        kind: the kind of the requested object, if any.
        doing: the request in words, such as `read pods in team-a`.
        server: the API server's address.
        subject: who makes the request.
    """
    status, message = refusal.status, refusal.message
    if status == 401:
        return Forbidden(
            f"the cluster does not know {subject}: got {message} (401) from {server}; log in "
            "again, or choose another context of the kubeconfig"
        )
    if status == 403:
        # Quotas and admission policies answer so, too; only RBAC's message names a resource.
        if _NO_ROLE.search(message):
            return Forbidden(
                f"{subject} may not {doing}: got {message}; ask for a role that allows it"
            )
        return NotAdmitted(_refused(refusal, doing))
    if status == 404:
        return _missing_error(refusal, kind, doing)
    if _is_conflict(refusal):
        return _conflict(refusal, doing)
    if match := _UNKNOWN_FIELD.search(message):  # an answer with status 500
        return UnknownField(
            f"the API server refuses to {doing}: it has no field {match[1]}; its RLHFJob CRD is of "
            "another version than this program; install the same version of both"
        )
    if status < 400 or status >= 500 or status in _TEMPORARY:
        text = f"the cluster could not {doing}: got {status}: {message} from {server}; try again"
        return ListExpired(text, refusal.following) if refusal.following else Unreachable(text)
    return Invalid(_refused(refusal, doing))


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
        return f"the API server refuses to {doing}: {reasons[0]}"
    return f"the API server refuses to {doing}:\n" + _list(reasons)


def _is_conflict(refusal: Refusal) -> bool:
    # Kinds differ in how they say that another object has the name.
    is_other_uid = any(field == "metadata.uid" for field, _, _ in refusal.causes)
    return refusal.status == 409 or (refusal.status == 422 and is_other_uid)


def _conflict(refusal: Refusal, doing: str) -> Conflict:
    if refusal.reason == "AlreadyExists":
        return AlreadyExists(_refused(refusal, doing))
    if not any(problem == "FieldManagerConflict" for _, problem, _ in refusal.causes):
        return Conflict(_refused(refusal, doing))
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


def _missing_error(refusal: Refusal, kind: Kind | None, doing: str) -> KubeError:
    if refusal.kind == "namespaces":
        return NotFound(
            f"cannot {doing}: got {refusal.message}; give another -n, or create it: "
            f"kubectl create namespace {refusal.name}"
        )
    if refusal.name or kind is None:
        return NotFound(f"cannot {doing}: {refusal.message}")
    if kind is Kind.JOB:
        return NotInstalled(
            f"this cluster does not know RLHFJobs: got {refusal.message}; {INSTALL}"
        )
    return NotInstalled(
        f"this cluster has no {kind.resource}: got {refusal.message}; install what defines them"
    )
