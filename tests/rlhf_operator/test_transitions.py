"""Predicates of decisions are pure: functions that return bool get no draft to change."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

from rlhf_operator import decide
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.predicates import Snapshot, always
from rlhf_operator.decide.reconcile import TRANSITIONS


def functions() -> Iterator[Callable[..., Any]]:
    for module in pkgutil.iter_modules(decide.__path__, f"{decide.__name__}."):
        for _, member in inspect.getmembers(importlib.import_module(module.name)):
            if inspect.isfunction(member) and member.__module__ == module.name:
                yield member


def test_functions_that_return_bool_get_no_draft() -> None:
    wrong = [
        function.__qualname__
        for function in functions()
        if (hints := get_type_hints(function)).get("return") is bool and Draft in hints.values()
    ]
    assert wrong == []


def test_the_functions_of_all_modules_are_read() -> None:
    names = {function.__name__ for function in functions()}
    assert {"follow_cluster", "is_head_dead", "stop_driver", "_submit"} <= names


def test_each_transition_has_a_predicate_and_the_last_one_always_applies() -> None:
    for predicate, transition in TRANSITIONS:
        assert get_type_hints(predicate)["return"] is bool
        assert Snapshot in get_type_hints(predicate).values()
        assert get_type_hints(transition)["return"] is type(None)
    assert TRANSITIONS[-1][0] is always
