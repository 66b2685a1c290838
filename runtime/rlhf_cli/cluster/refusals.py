"""What the API server's refusals mean: from a status and its body to an error in words. Pure."""

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
    "install the operator's chart (charts/rlhf-operator), or ask who runs the cluster; "
    "`kubectl get crd rlhfjobs.rlhf-operator.dev` shows whether it is there"
)
_PREFIX = re.compile(r'^(?:Forbidden|Invalid value: (?:"(?:[^"\\]|\\.)*"|\S+)): ')
_MANAGER = re.compile(r'conflict with "([^"]*)"')
_UNKNOWN_FIELD = re.compile(r"\.?(\S+): field not declared in schema")
_UNALLOWED = re.compile(r"cannot \w+ resource")
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Refusal:
    """An answer of the API server that is no success."""

    status: int
    message: str
    reason: str = ""
    causes: tuple[tuple[str, str, str], ...] = ()
    """Field, kind of problem, and message of each."""
    name: str = ""
    """What it is about, where it says so."""
    kind: str = ""


def read_refusal(status: int, body: bytes) -> Refusal:
    """Read an answer, which should be a Status object, but may come from any proxy."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != "Status":
        text = body.decode("utf-8", "replace").strip().partition("\n")[0][:200]
        return Refusal(status, text or "no explanation")
    details: Mapping[str, Any] = document.get("details") or {}
    causes = tuple(
        (str(each.get("field", "")), str(each.get("reason", "")), str(each.get("message", "")))
        for each in details.get("causes") or ()
    )
    return Refusal(
        status,
        str(document.get("message", "")),
        str(document.get("reason", "")),
        causes,
        str(details.get("name", "")),
        str(details.get("kind", "")),
    )


def error_of(refusal: Refusal, kind: Kind | None, doing: str, server: str) -> ClusterError:
    """The error that says what a refusal means.

    Args:
        kind: what the request was about; None for none.
        doing: the request in words, such as `read pods in team-a`.
        server: the API server's address.
    """
    status, message = refusal.status, refusal.message
    if status == 401:
        return AccessDenied(
            f"the cluster does not know you: got {message} (401) from {server}; log in again, or "
            "choose another --context"
        )
    if status == 403 and _UNALLOWED.search(message):
        return AccessDenied(f"you may not {doing}: got {message}; ask for a role that allows it")
    if status == 404:
        return _not_found(refusal, kind, doing)
    if status == 409 and any(what == "FieldManagerConflict" for _, what, _ in refusal.causes):
        return _conflict(refusal)
    if found := _UNKNOWN_FIELD.search(message):
        return ObjectRefused(
            f"the cluster refuses to {doing}: it has no field {found[1]}; its RLHFJobs are of "
            "another version than this command: install the version of the command that it has"
        )
    if status in (400, 403, 409, 413, 415, 422):
        return ObjectRefused(_refused(refusal, doing))
    return ClusterUnreachable(
        f"the cluster could not {doing}: got {status}: {message} from {server}; try again"
    )


def reasons_of(refusal: Refusal) -> list[str]:
    """Each thing that a refusal is about, as `field: what is wrong`."""
    found = []
    for field, _, message in refusal.causes:
        text = _PREFIX.sub("", message)
        is_named = field in ("", "<nil>") or text.startswith((f"{field} ", f"{field}:"))
        found.append(text if is_named else f"{field}: {text}")
    return list(dict.fromkeys(found))


def _refused(refusal: Refusal, doing: str) -> str:
    reasons = reasons_of(refusal) or [refusal.message]
    if len(reasons) == 1:
        return f"the cluster refuses to {doing}: {reasons[0]}"
    return f"the cluster refuses to {doing}:\n" + _list(reasons)


def _conflict(refusal: Refusal) -> FieldsConflict:
    lines = [f"{field.lstrip('.')}: {message}" for field, _, message in refusal.causes]
    managers = (_MANAGER.search(message) for _, _, message in refusal.causes)
    return FieldsConflict(
        "others have set fields that this would change; with --force-conflicts it does:\n"
        + _list(lines),
        frozenset(found[1] for found in managers if found),
    )


def _list(lines: Sequence[str]) -> str:
    shown = [f"  {line}" for line in lines[:_MOST_SHOWN]]
    more = len(lines) - _MOST_SHOWN
    return "\n".join([*shown, f"  and {more} more"] if more > 0 else shown)


def _not_found(refusal: Refusal, kind: Kind | None, doing: str) -> ClusterError:
    if refusal.kind == "namespaces":
        return ObjectNotFound(
            f"cannot {doing}: got {refusal.message}; give another -n, or make it: "
            f"kubectl create namespace {refusal.name}"
        )
    if refusal.name or kind is None:
        return ObjectNotFound(f"cannot {doing}: {refusal.message}")
    if kind == Kind.JOB:
        return NotInstalled(
            f"this cluster does not know RLHFJobs: got {refusal.message}; {INSTALL}"
        )
    return ObjectNotFound(f"this cluster has no {kind.resource}: got {refusal.message}")
