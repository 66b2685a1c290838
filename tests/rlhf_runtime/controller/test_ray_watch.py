"""A driver that hangs when Ray has gone is ended; one that notices by itself is not."""

from __future__ import annotations

import queue

from rlhf_runtime.controller.ray_watch import RayWatch
from rlhf_runtime.errors import RayFailed

SECONDS = 60.0
NEVER = 3600.0


def ray_has_gone() -> None:
    raise RayFailed("got no raylet any more")


def test_a_driver_that_hangs_is_given_up_with_what_was_noticed() -> None:
    given_up: queue.Queue[RayFailed] = queue.Queue()
    RayWatch(ray_has_gone, given_up.put, poll_seconds=0.0, end_seconds=0.0).start()
    assert "got no raylet" in str(given_up.get(timeout=SECONDS))


def test_a_driver_that_ends_is_left_alone() -> None:
    given_up: list[RayFailed] = []
    watch = RayWatch(ray_has_gone, given_up.append, poll_seconds=NEVER, end_seconds=NEVER)
    watch.start()
    watch.close()
    assert given_up == []


def test_a_driver_that_hangs_while_it_ends_ray_is_given_up_too() -> None:
    looked, given_up = queue.Queue[None](), queue.Queue[RayFailed]()

    def poll() -> None:
        looked.put(None)
        ray_has_gone()

    watch = RayWatch(poll, given_up.put, poll_seconds=0.0, end_seconds=0.1)
    watch.start()
    looked.get(timeout=SECONDS)
    watch.stop_polling()
    assert "got no raylet" in str(given_up.get(timeout=SECONDS))


def test_one_that_noticed_in_time_ends_in_its_own_words() -> None:
    looked, given_up = queue.Queue[None](), list[RayFailed]()

    def poll() -> None:
        looked.put(None)
        ray_has_gone()

    watch = RayWatch(poll, given_up.append, poll_seconds=0.0, end_seconds=NEVER)
    watch.start()
    looked.get(timeout=SECONDS)
    watch.close()
    assert given_up == []
