"""One local Ray instance, with four ranks, for all tests of this folder: it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from rlhf_runtime.controller.local_ray import start_local_ray, stop_local_ray

from ...heavy_starts import Heavy, count_start
from . import actors


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Ray as `rlhf run` starts it. Workers get the actors of these tests by value."""
    count_start(Heavy.RAY)
    start_local_ray(2)
    ray.cloudpickle.register_pickle_by_value(actors)
    try:
        yield
    finally:
        ray.cloudpickle.unregister_pickle_by_value(actors)
        stop_local_ray()


@pytest.fixture(scope="session")
def workers(local_ray: None) -> tuple[Any, ...]:
    """Handles of four toy ranks."""
    return actors.start(4)
