"""Transfer protocols of users: loaded by entry point, and checked.

Custom(protocol="mine:PAIR") -> user_protocol("mine:PAIR") -> Protocol(distribute, collect)
                                check_cover, before a job starts: every row once on a mesh
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from rlhf_api.mesh import Mesh
from rlhf_runtime import user_code
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.dataplane.protocol import Coordinates, Protocol
from rlhf_runtime.errors import UserCodeFailed

# Number of ranks whose slices a message shows.
SHOWN_RANKS = 8


def user_protocol(entrypoint: str) -> Protocol:
    """Load a protocol whose answers are checked.

    Args:
        entrypoint: `package.module:NAME`.

    Raises:
        UserCodeFailed: it cannot be imported. Later, in its calls: it raises, or returns no `Slice`
            or no bool.
    """
    protocol = user_code.load("the protocol", entrypoint)

    def distribute(at: Coordinates) -> Slice:
        method = f"distribute of the protocol {entrypoint}"
        batch_slice = user_code.call(method, protocol.distribute, at)
        if not (isinstance(batch_slice, Slice) and _is_slice(batch_slice)):
            raise UserCodeFailed(
                f"{method} gives rank {at.rank} no part of the rows: got {batch_slice!r}, allowed "
                "Slice(index, count) of integers with 0 <= index < count; return one"
            )
        return batch_slice

    def collect(at: Coordinates) -> bool:
        method = f"collect of the protocol {entrypoint}"
        counts = user_code.call(method, protocol.collect, at)
        if not isinstance(counts, bool):
            raise UserCodeFailed(
                f"{method} does not say whether the output of rank {at.rank} counts: got "
                f"{counts!r}, allowed True or False; return one"
            )
        return counts

    return Protocol(distribute, collect)


def check_cover(entrypoint: str, mesh: Mesh) -> None:
    """Check that the slices of collected ranks are every row exactly once, for any number of rows.

    Args:
        entrypoint: of the protocol.
        mesh: of a call that uses it.

    Raises:
        UserCodeFailed: they are not, or the protocol fails.
    """
    protocol = user_protocol(entrypoint)
    positions = [Coordinates.in_mesh(rank, mesh) for rank in mesh.ranks]
    slices = {at: protocol.distribute(at) for at in positions}
    counted = {at.rank: batch_slice for at, batch_slice in slices.items() if protocol.collect(at)}
    if error := next(_coverage_errors(counted), None):
        raise UserCodeFailed(
            f"the protocol {entrypoint} collects {error}, on {mesh.num_devices} ranks "
            f"(data={mesh.data}, tensor={mesh.tensor}, pipeline={mesh.pipeline}): got "
            f"{_slices_text(counted)}, allowed slices of the collected ranks that are every row "
            "once; change distribute or collect"
        )


def _is_slice(batch_slice: Slice) -> bool:
    are_integers = all(type(number) is int for number in (batch_slice.index, batch_slice.count))
    return are_integers and 0 <= batch_slice.index < batch_slice.count


def _coverage_errors(counted: dict[int, Slice]) -> Iterator[str]:
    """Describe rows that are missing or there twice."""
    # Fractions of the rows: where these meet, so do the rows of any batch.
    bounds_by_rank = [
        (
            Fraction(batch_slice.index, batch_slice.count),
            Fraction(batch_slice.index + 1, batch_slice.count),
            rank,
        )
        for rank, batch_slice in counted.items()
    ]
    bounds = [
        (Fraction(0), Fraction(0), -1),
        *sorted(bounds_by_rank),
        (Fraction(1), Fraction(1), -1),
    ]
    for (_, end, before), (begin, stop, rank) in pairwise(bounds):
        if end < begin:
            yield f"{_rows(end, begin)} from no rank"
        if begin < end:
            yield f"{_rows(begin, min(end, stop))} from rank {before} and from rank {rank}"


def _rows(begin: Fraction, end: Fraction) -> str:
    return "all rows" if end - begin == 1 else f"the rows from {begin} to {end} of a batch"


def _slices_text(counted: dict[int, Slice]) -> str:
    texts = [
        f"rank {rank}: part {batch_slice.index} of {batch_slice.count}"
        for rank, batch_slice in list(counted.items())[:SHOWN_RANKS]
    ]
    more = [f"{len(counted) - SHOWN_RANKS} more"] if len(counted) > SHOWN_RANKS else []
    return ", ".join([*texts, *more]) or "no collected rank"
