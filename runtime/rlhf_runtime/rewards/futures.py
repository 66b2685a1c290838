"""Futures that depend on other futures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

One = TypeVar("One")
Other = TypeVar("Other")


def map_future(future: Future[One], function: Callable[[One], Other]) -> Future[Other]:
    """Return a future of a function of another future's result, or its error."""
    result: Future[Other] = Future()

    def copy(done: Future[One]) -> None:
        try:
            result.set_result(function(done.result()))
        except Exception as error:
            result.set_exception(error)

    future.add_done_callback(copy)
    return result
