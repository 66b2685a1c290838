"""Errors of several checks are told at once."""

from __future__ import annotations

import pickle

import pytest

from rlhf_api.entrypoint import entrypoint_from_file
from rlhf_api.error_collector import ErrorCollector, raise_together
from rlhf_api.errors import (
    ManifestError,
    OverrideError,
    RlhfError,
    SeveralErrors,
    UnknownFieldError,
)
from rlhf_api.exits import ExitCode
from rlhf_api.problems import Problem


def manifest(*names: str) -> ManifestError:
    return ManifestError([Problem(("spec", name), "wrong") for name in names])


def gathered(*errors: RlhfError) -> ErrorCollector:
    found = ErrorCollector()
    for error in errors:
        with found.check():
            raise error
    return found


def test_nothing_wrong_raises_nothing() -> None:
    found = gathered()
    with found.check():
        pass
    found.raise_all()


def test_one_error_is_raised_as_it_is() -> None:
    one = OverrideError("one")
    with pytest.raises(OverrideError) as caught:
        gathered(one).raise_all()
    assert caught.value is one


def test_problems_of_a_manifest_stay_problems_of_a_manifest() -> None:
    with pytest.raises(ManifestError) as caught:
        gathered(manifest("a", "b"), manifest("c")).raise_all()
    assert [problem.path for problem in caught.value.problems] == ["spec.a", "spec.b", "spec.c"]


def test_several_errors_are_listed_with_their_reasons() -> None:
    inner = SeveralErrors([OverrideError("one"), UnknownFieldError("two")])
    with pytest.raises(SeveralErrors) as caught:
        gathered(inner, manifest("a")).raise_all()
    assert str(caught.value).splitlines() == [
        "InvalidOverride: one",
        "UnknownField: two",
        "InvalidManifest: spec.a: wrong",
    ]
    assert caught.value.exit_code is ExitCode.MANIFEST, "all of them are the manifest's"


class OfUsers(RlhfError):
    reason, exit_code = "OfUsers", ExitCode.USER


def test_errors_of_several_kinds_ask_the_user_to_mend_them() -> None:
    with pytest.raises(SeveralErrors) as caught:
        raise_together([manifest("a"), OfUsers("data")])
    assert caught.value.exit_code is ExitCode.USER


def test_other_errors_are_not_kept() -> None:
    with pytest.raises(ZeroDivisionError), ErrorCollector().check():
        _ = 1 // 0


def test_several_errors_cross_processes() -> None:
    with pytest.raises(SeveralErrors) as caught:
        raise_together([OverrideError("one"), UnknownFieldError("two")])
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert [type(error) for error in again.errors] == [OverrideError, UnknownFieldError]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("addv.py:score", "addv:score"),
        ("./verifiers/addv.py:score", "verifiers.addv:score"),
        ("/home/me/addv.py:score", ""),
        ("../addv.py:score", ""),
        ("verifiers/../addv.py:score", ""),
        ("addv:score", ""),
        ("happy:score", ""),
    ],
)
def test_a_file_in_the_place_of_a_module_is_understood(given: str, meant: str) -> None:
    assert entrypoint_from_file(given) == meant
