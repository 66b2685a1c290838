"""What the API server's answers become, in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlhf_kube.errors import (
    AlreadyExists,
    Conflict,
    FieldsConflict,
    Forbidden,
    Invalid,
    KubeError,
    NotAdmitted,
    NotFound,
    NotInstalled,
    UnknownField,
    Unreachable,
)
from rlhf_kube.kinds import Kind
from rlhf_kube.refusals import parse_refusal, refusal_error, refusal_reasons


def answer(code: int, message: str, **details: Any) -> bytes:
    document = {"kind": "Status", "code": code, "message": message, "details": details}
    return json.dumps(document).encode()


EXISTS = json.dumps(
    {"kind": "Status", "code": 409, "message": "a already exists", "reason": "AlreadyExists"}
).encode()
OTHER_UID = answer(422, "", causes=[{"field": "metadata.uid", "message": "uid mismatch"}])


def error(code: int, body: bytes, kind: Kind | None = Kind.JOB) -> KubeError:
    return refusal_error(parse_refusal(code, body), kind, "submit sort in team", "https://server")


@pytest.mark.parametrize(
    ("code", "body", "kind", "expected", "says"),
    [
        (401, answer(401, "Unauthorized"), Kind.JOB, Forbidden, "log in again"),
        (
            403,
            answer(403, 'pods is forbidden: User "a" cannot create resource "pods"'),
            Kind.POD,
            Forbidden,
            "you may not submit sort in team",
        ),
        (
            403,
            answer(403, 'pods "a" is forbidden: exceeded quota: gpus'),
            Kind.POD,
            NotAdmitted,
            "exceeded quota",
        ),
        (404, b"404 page not found\n", Kind.JOB, NotInstalled, "install the operator's chart"),
        (404, b"404 page not found\n", Kind.CONFIG_MAP, NotInstalled, "has no configmaps"),
        (404, answer(404, 'x "sort" not found', name="sort"), Kind.JOB, NotFound, '"sort"'),
        (
            404,
            answer(404, 'namespaces "nope" not found', name="nope", kind="namespaces"),
            Kind.JOB,
            NotFound,
            "kubectl create namespace nope",
        ),
        (500, answer(500, "etcd is away"), Kind.JOB, Unreachable, "etcd is away"),
        (
            500,
            answer(500, "failed: .spec.colour: field not declared in schema"),
            Kind.JOB,
            UnknownField,
            "no field spec.colour",
        ),
        (503, b"<html>busy</html>\nmore", None, Unreachable, "got 503: <html>busy</html>"),
        (429, b"", Kind.JOB, Unreachable, "got 429: no explanation"),
        (410, answer(410, "too old"), Kind.JOB, Unreachable, "try again"),
        (302, b"log in", None, Unreachable, "got 302: log in"),
        (405, answer(405, "no such verb"), Kind.JOB, Invalid, "refuses to submit"),
        (409, answer(409, "it has changed"), Kind.JOB, Conflict, "it has changed"),
        (409, EXISTS, Kind.JOB, AlreadyExists, "already exists"),
        (422, OTHER_UID, Kind.CONFIG_MAP, Conflict, "uid mismatch"),
    ],
)
def test_each_answer_has_its_error(
    code: int, body: bytes, kind: Kind | None, expected: type[KubeError], says: str
) -> None:
    found = error(code, body, kind)
    assert type(found) is expected and says in str(found)


def test_every_reason_of_a_refusal_is_on_a_line_of_its_own() -> None:
    causes = [
        {"field": "spec.a", "reason": "FieldValueForbidden", "message": "Forbidden: spec.a cannot"},
        {"field": "spec.b", "message": 'Invalid value: "object": choose one: x or y'},
        {"field": "spec.c", "message": "Required value"},
        {"field": "spec.c", "message": "Required value"},
        {"field": "<nil>", "message": 'Invalid value: "": some rules were not checked'},
    ]
    refusal = parse_refusal(422, answer(422, "is invalid", causes=causes, name="sort"))
    assert refusal_reasons(refusal) == [
        "spec.a cannot",
        "spec.b: choose one: x or y",
        "spec.c: Required value",
        "some rules were not checked",
    ]
    assert str(error(422, answer(422, "bad", causes=causes))).count("\n  ") == 4


def test_a_flood_of_reasons_is_cut() -> None:
    causes = [{"field": f"spec.x{n}", "message": "no"} for n in range(50)]
    text = str(error(422, answer(422, "bad", causes=causes)))
    assert text.endswith("and 30 more") and len(text.splitlines()) == 22


def test_a_conflict_says_who_has_set_what() -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "field": ".spec.suspend",
            "message": 'conflict with "argocd" using v1',
        }
    ]
    found = error(409, answer(409, "conflict", causes=causes))
    assert isinstance(found, FieldsConflict) and found.managers == {"argocd"}
    assert 'spec.suspend: conflict with "argocd"' in str(found)
    assert "--force-conflicts" in str(found)
