"""Errors of workers reach the driver as those who raised them meant them."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import ray

from rlhf_runtime.controller.results import iterate_completed, wait_for
from rlhf_runtime.errors import GenerationFailed, WorkerLost, WorkerRaised

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]


@ray.remote(num_cpus=0)
def succeed(value: int) -> int:
    return value


@ray.remote(num_cpus=0)
def fail(kind: str) -> None:
    if kind == "known":
        raise GenerationFailed("vLLM ended a request: got abort")
    raise KeyError("nobody's name")


class TwoPartsError(Exception):
    """Cannot be pickled: it is made of two arguments, and has one text."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


@ray.remote(num_cpus=0)
def fail_in_two_parts() -> None:
    raise TwoPartsError("part", 2)


@ray.remote(num_cpus=0)
def read(references: list[Any]) -> Any:
    return ray.get(references)


@ray.remote(num_cpus=0, max_retries=0)
def die() -> None:
    os._exit(7)


@ray.remote(num_cpus=0, max_concurrency=2)
class Gate:
    def __init__(self) -> None:
        self._opened = threading.Event()

    def wait(self) -> None:
        self._opened.wait()

    def open(self) -> None:
        self._opened.set()


def test_values_come_in_the_order_of_their_references() -> None:
    references = [succeed.remote(value) for value in range(5)]
    assert wait_for([*references[::-1], references[0]]) == [4, 3, 2, 1, 0, 0]
    assert wait_for([]) == []


def test_groups_come_as_they_end() -> None:
    gate = Gate.remote()
    first, last = succeed.remote(1), gate.wait.remote()
    come = iterate_completed({"both": [first, last], "one": [first]})
    assert next(come) == "one"
    gate.open.remote()
    assert list(come) == ["both"]


def test_an_error_of_a_later_group_is_not_kept_waiting_by_an_earlier_one() -> None:
    gate = Gate.remote()
    with pytest.raises(GenerationFailed, match="got abort"):
        list(iterate_completed({"waits": [gate.wait.remote()], "fails": [fail.remote("known")]}))


def test_an_error_of_ours_loses_rays_wrapping() -> None:
    with pytest.raises(GenerationFailed) as raised:
        wait_for([succeed.remote(1), fail.remote("known")])
    assert str(raised.value) == "vLLM ended a request: got abort"


def test_an_error_that_cannot_be_sent_is_no_death() -> None:
    with pytest.raises(WorkerRaised, match=r"a worker raised .*TwoPartsError: part 2\n") as raised:
        wait_for([fail_in_two_parts.remote()])
    assert "in fail_in_two_parts" in str(raised.value)


def test_an_error_that_another_worker_met_is_the_first_ones() -> None:
    passed_on = read.remote([fail.remote("known")])
    with pytest.raises(GenerationFailed, match=r"^vLLM ended a request: got abort$"):
        wait_for([passed_on])


def test_any_other_error_is_a_fault_with_its_stack() -> None:
    with pytest.raises(WorkerRaised, match=r"KeyError: \"nobody's name\"(.|\n)*in fail"):
        wait_for([fail.remote("unknown")])


def test_a_dead_worker_is_lost() -> None:
    with pytest.raises(WorkerLost, match="a worker died"):
        wait_for([die.remote()])


@ray.remote(num_cpus=0)
class Mortal:
    def die(self) -> None:
        os._exit(7)


def test_a_dead_worker_is_named() -> None:
    worker = Mortal.options(name="rank 1 in 0123abcd").remote()
    with pytest.raises(
        WorkerLost, match=r"^rank 1 \(process \d+\) died: The actor is dead"
    ) as raised:
        wait_for([worker.die.remote()])
    assert "\t" not in str(raised.value)


def test_a_death_outranks_what_it_made_others_raise() -> None:
    with pytest.raises(WorkerLost, match="a worker died"):
        wait_for([fail.remote("unknown"), die.remote()])
