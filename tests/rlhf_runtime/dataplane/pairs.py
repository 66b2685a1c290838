"""Transfer protocols of a user's own."""

from __future__ import annotations

from typing import Any, NoReturn

from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.dataplane.protocol import PROTOCOLS, Coordinates, Protocol

MODULE = __name__


def backwards(at: Coordinates) -> Slice:
    """The last replica gets the first rows."""
    return Slice(at.data_size - 1 - at.data, at.data_size)


def halving(at: Coordinates) -> Slice:
    """Each rank half of what the ranks before it have left, the last one all of it."""
    count = 2 ** min(at.rank + 1, at.num_ranks - 1)
    return Slice(count - 1 if at.rank == at.num_ranks - 1 else count - 2, count)


def by_data(at: Coordinates) -> Slice:
    return Slice(at.data, at.data_size)


def on_all(at: Coordinates) -> bool:
    return True


def on_first(at: Coordinates) -> bool:
    return at.rank == 0


def of_replica(at: Coordinates) -> bool:
    return at.tensor == 0 and at.pipeline == 0


def raises(at: Coordinates) -> NoReturn:
    raise LookupError(f"no rows for rank {at.rank}")


def gives(answer: Any) -> Any:
    return lambda at: answer


ONE_TO_ALL = PROTOCOLS["one_to_all"]
BY_DATA = PROTOCOLS["3d"]
MICRO = PROTOCOLS["3d_all_micro_dp"]
STAGES = PROTOCOLS["3d_pp_only"]
ALL_RANKS = PROTOCOLS["dp"]
ALL_TO_ALL = PROTOCOLS["all_to_all"]

BACKWARDS = Protocol(backwards, of_replica)
HALVING = Protocol(halving, on_all)
ON_FIRST = Protocol(lambda at: Slice(0, 1), on_first)

ONE_REPLICA = Protocol(by_data, on_first)
TENSOR_RANKS = Protocol(by_data, on_all)
NOBODY = Protocol(by_data, lambda at: False)
GAP = Protocol(lambda at: Slice(2 * at.rank, 4), on_all)
OVERLAP = Protocol(lambda at: Slice(at.rank, 2 + at.rank), on_all)
RAISES = Protocol(raises, on_all)
RAISES_LATE = Protocol(by_data, raises)
NO_SHARE = Protocol(gives(range(4)), on_all)
NO_PART = Protocol(gives(Slice(2, 2)), on_all)
NO_NUMBER = Protocol(gives(Slice(0.5, 2)), on_all)  # type: ignore[arg-type]
NO_ANSWER = Protocol(by_data, gives(1))
