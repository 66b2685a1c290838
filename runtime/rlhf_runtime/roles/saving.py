"""What of a rank goes into a checkpoint, and how it comes back."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from rlhf_runtime.checkpoint.saver import State, load, parts_of, saved_keys
from rlhf_runtime.engines.offloading import on_device
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import CheckpointFailed

SAVED_ROLE = re.compile(r"roles\.([^.]+)\.version")
"""What `_version` makes."""
OPERATIONS = "operations."
"""Before the names of what operations keep."""


def state_of(
    engines: Mapping[str, TrainingEngine], operations: Mapping[str, torch.Tensor], world: World
) -> Iterator[State]:
    """Everything that later steps on this rank depend on: one role after the other, each on its
    device until the next is asked for.

    Args:
        engines: of the roles on this rank that are saved.
        operations: what operations keep from step to step.
        world: the ranks of its pool.
    """
    for role, model in engines.items():
        with on_device(model):
            yield {f"roles.{role}": model.state()}
    kept: State = {f"{OPERATIONS}{name}": value for name, value in operations.items()}
    yield kept | {f"random.{world.rank}": _random_state()}


def restore(
    engines: Mapping[str, TrainingEngine],
    operations: dict[str, torch.Tensor] | None,
    world: World,
    address: str,
    pool: str,
) -> None:
    """Go on from a checkpoint; collective over the pool. Trained models must have their new
    optimizers.

    What a role needs is found in whichever pool's part holds it: roles may have moved since. With
    another number of ranks than wrote it, or in a pool of another name, the random numbers of
    custom code begin anew.

    Args:
        engines: of the roles on this rank that are saved.
        operations: gets what operations keep. None: none run on this rank.
        world: the ranks of its pool.
        address: of the checkpoint.
        pool: the name of its pool.

    Raises:
        CheckpointFailed: it is not that of these roles.
        StorageFailed: it cannot be read.
    """
    saved = {part: saved_keys(part) for part in parts_of(address)}
    _require_roles(engines, saved, address)
    for part, keys in saved.items():
        for role in _roles_in(keys):
            _restore_role(role, engines.get(role), keys, part)
        kept = [] if operations is None else sorted(k for k in keys if k.startswith(OPERATIONS))
        state: State = {key: torch.zeros((), dtype=torch.float64) for key in kept}
        own = f"random.{world.rank}"
        same_size = f"random.{world.size - 1}" in keys and f"random.{world.size}" not in keys
        has_own = same_size and part == f"{address}/{pool}"
        if has_own:
            state[own] = b""
        load(state, part)
        if operations is not None:
            operations.update({key.removeprefix(OPERATIONS): state[key] for key in kept})
        if has_own:
            _set_random_state(state[own])


def _restore_role(role: str, model: TrainingEngine | None, keys: frozenset[str], part: str) -> None:
    """Let a role go on from its state; collective over the pool, also where it has no model."""
    if model is None:
        load({}, part)
        return
    with on_device(model):
        model.expect_state(_names_below(keys, f"roles.{role}.optimizer.adam."))
        state: State = {f"roles.{role}": model.state()}
        load(state, part)
        model.adopt(state[f"roles.{role}"])


def _roles_in(keys: frozenset[str]) -> list[str]:
    """Roles that are saved under these keys, in the same order on every rank."""
    found = (SAVED_ROLE.fullmatch(key) for key in keys)
    return sorted(match[1] for match in found if match)


def _version(role: str) -> str:
    """A key that a saved role has."""
    return f"roles.{role}.version"


def _require_roles(
    engines: Mapping[str, TrainingEngine], saved: Mapping[str, frozenset[str]], address: str
) -> None:
    found = frozenset().union(*saved.values())
    for role in engines:
        if _version(role) not in found:
            raise CheckpointFailed(f"{address} does not fit: it has no roles.{role}")


def _names_below(keys: frozenset[str], prefix: str) -> frozenset[str]:
    """Parameters' names: what stands between the prefix and the last dot."""
    return frozenset(key[len(prefix) :].rsplit(".", 1)[0] for key in keys if key.startswith(prefix))


def _random_state() -> bytes:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    state = (torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())
    return pickle.dumps(state)


def _set_random_state(saved: bytes) -> None:
    ours: tuple[Any, ...] = pickle.loads(saved)
    torch_state, cuda, numpy_state, python_state = ours
    torch.set_rng_state(torch_state)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    np.random.set_state(numpy_state)
    random.setstate(python_state)
