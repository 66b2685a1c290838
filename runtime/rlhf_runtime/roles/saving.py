"""Saves a rank's state in a checkpoint and restores it."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from rlhf_runtime.checkpoint.saver import State, load, pool_addresses, saved_keys
from rlhf_runtime.engines.offloading import on_device
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import CheckpointFailed

# Matches the keys that `_version_key` builds.
SAVED_ROLE = re.compile(r"roles\.([^.]+)\.version")
OPERATIONS = "operations."
"""Prefix of the keys of operations' state."""


def state_of(
    engines: Mapping[str, TrainingEngine], operations: Mapping[str, torch.Tensor], world: World
) -> Iterator[State]:
    """Yield the state that later steps on this rank depend on, one role after the other.

    Each role is on its device until the next one is requested.

    Args:
        engines: of the roles on this rank that are saved.
        operations: state that operations keep between steps.
        world: the ranks of the rank's pool.
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
    """Restore a rank from a checkpoint. Collective over the pool.

    Trained models must have their new optimizers. The random state of custom code is restored only
    in a pool of the same name with as many ranks as the one that saved it.

    Args:
        engines: of the roles on this rank that are saved.
        operations: updated with operations' state. None: no operations run on this rank.
        world: the ranks of the rank's pool.
        address: of the checkpoint.
        pool: the name of the rank's pool.

    Raises:
        CheckpointFailed: the checkpoint lacks one of these roles.
        StorageFailed: the checkpoint cannot be read.
    """
    # Reads the parts of all pools: a role may have been in another pool when it was saved.
    saved = {part: saved_keys(part) for part in pool_addresses(address)}
    _require_roles(engines, saved, address)
    for part, keys in saved.items():
        for role in _roles_in(keys):
            _restore_role(role, engines.get(role), keys, part)
        kept = [] if operations is None else sorted(k for k in keys if k.startswith(OPERATIONS))
        state: State = {key: torch.zeros((), dtype=torch.float64) for key in kept}
        own = f"random.{world.rank}"
        # Ranks count from 0, so these two keys tell the number of ranks that saved.
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
    """Restore a role's state. Collective over the pool, also on ranks without its model."""
    if model is None:
        # Loading is collective, so ranks without the model take part with no keys.
        load({}, part)
        return
    with on_device(model):
        # Only parameters that were updated have state; allocate exactly theirs.
        model.expect_state(_names_below(keys, f"roles.{role}.optimizer.adam."))
        state: State = {f"roles.{role}": model.state()}
        load(state, part)
        model.adopt(state[f"roles.{role}"])


def _roles_in(keys: frozenset[str]) -> list[str]:
    # Sorted: loading is collective, so every rank must load the roles in the same order.
    matches = (SAVED_ROLE.fullmatch(key) for key in keys)
    return sorted(match[1] for match in matches if match)


def _version_key(role: str) -> str:
    # Every saved role has this key.
    return f"roles.{role}.version"


def _require_roles(
    engines: Mapping[str, TrainingEngine], saved: Mapping[str, frozenset[str]], address: str
) -> None:
    all_keys = frozenset().union(*saved.values())
    for role in engines:
        if _version_key(role) not in all_keys:
            raise CheckpointFailed(f"{address} does not fit: it has no roles.{role}")


def _names_below(keys: frozenset[str], prefix: str) -> frozenset[str]:
    # Keys are the prefix, the parameter's name and, after the last dot, the kind of state.
    return frozenset(key[len(prefix) :].rsplit(".", 1)[0] for key in keys if key.startswith(prefix))


def _random_state() -> bytes:
    # All generators that custom code may use; the role's own sampling is seeded by row.
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    state = (torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())
    return pickle.dumps(state)


def _set_random_state(saved: bytes) -> None:
    states: tuple[Any, ...] = pickle.loads(saved)
    torch_state, cuda, numpy_state, python_state = states
    torch.set_rng_state(torch_state)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    np.random.set_state(numpy_state)
    random.setstate(python_state)
