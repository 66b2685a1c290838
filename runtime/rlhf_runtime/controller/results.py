"""What workers answered: results as they come, and errors as those who raised them meant them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from rlhf_api.errors import RlhfError
from rlhf_runtime.errors import WorkerLost, WorkerRaised


def wait_for(references: Sequence[Any]) -> list[Any]:
    """The values of references, in their order; the first error of any is raised at once.

    Raises:
        RlhfError: the error that a worker raised, without Ray's wrapping.
        WorkerRaised: a worker raised something else.
        WorkerLost: a worker died.
    """
    found: dict[Any, Any] = {}
    pending = list(dict.fromkeys(references))
    try:
        while pending:
            ready, pending = ray.wait(pending, num_returns=len(pending), timeout=0)
            if not ready:
                ready, pending = ray.wait(pending, num_returns=1)
            found.update(zip(ready, ray.get(ready), strict=True))
    except RayError as error:
        raise meaning_of(error) from None
    return [found[reference] for reference in references]


def meaning_of(error: RayError) -> RlhfError:
    """The error behind what Ray raises, through workers that passed another's error on."""
    cause: BaseException = error
    while isinstance(cause, RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if isinstance(cause, RlhfError):
        return cause
    if isinstance(error, RayTaskError):
        return WorkerRaised(f"a worker raised {type(cause).__name__}: {cause}\n{error}")
    return WorkerLost(f"a worker died: {str(error).strip()}")
