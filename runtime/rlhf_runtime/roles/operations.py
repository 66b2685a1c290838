"""The numerics behind `flow.compute`: from an operation's name to its function on columns."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Mapping

import numpy as np
import torch

from rlhf_api.spec.algorithm import KlEstimator
from rlhf_flow.fields import role_of
from rlhf_flow.operations import Operation
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import UserCodeFailed
from rlhf_runtime.numerics.gae import generalized_advantages
from rlhf_runtime.numerics.groups import group_advantages
from rlhf_runtime.numerics.kl import kl_estimate
from rlhf_runtime.numerics.moments import explained_variance, whiten
from rlhf_runtime.numerics.padding import length_mask, pad, unpad
from rlhf_runtime.numerics.rewards import token_rewards
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.sequences import RESPONSES, as_tensor, lengths_of
from rlhf_runtime.roles.training import Means
from rlhf_runtime.workers.inputs import Inputs
from rlhf_runtime.workers.orders import Statistics


class Workspace:
    """The columns that a compute call works on, with the means it collects."""

    def __init__(
        self, columns: dict[str, Column], groups: np.ndarray, world: World, means: Means
    ) -> None:
        self.columns = columns
        self.groups = torch.tensor(groups)
        self.world = world
        self.means = means

    def rows(self, name: str) -> torch.Tensor:
        """A column with one value per row."""
        return as_tensor(self.columns[name])

    def padded(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A ragged column as [rows, longest], and its mask."""
        column = self.columns[name]
        return pad(as_tensor(column), lengths_of(column))

    def put(self, name: str, padded: torch.Tensor, mask: torch.Tensor) -> None:
        """Store a ragged column from [rows, longest]."""
        lengths = mask.sum(dim=1).to(torch.int32).numpy()
        self.columns[name] = Column(unpad(padded.float(), mask).numpy(), lengths)


def compute(inputs: Inputs, world: World) -> Result:
    """Run a compute call's operations one after the other on this rank's rows."""
    rows = inputs.rows()
    index = inputs.index.take(rows)
    means = Means()
    workspace = Workspace(dict(inputs.load(rows)), index.groups, world, means)
    operations = inputs.call.options["operations"]
    assert isinstance(operations, tuple)
    for operation in operations:
        if operation.name == "custom":
            _custom(workspace, operation)
        else:
            OPERATIONS[operation.name](workspace, operation.parameters)
    columns = {name: workspace.columns[name] for name in inputs.call.writes}
    return Result(columns, Statistics(means.means, means.maxima), index)


def _token_rewards(work: Workspace, parameters: Mapping[str, object]) -> None:
    mask = length_mask(lengths_of(work.columns[RESPONSES]))
    coefficient = parameters["kl_coefficient"]
    assert isinstance(coefficient, int | float)
    kl = None
    if coefficient > 0:
        own, _ = work.padded(str(parameters["policy_log_probs"]))
        reference, _ = work.padded(str(parameters["reference_log_probs"]))
        kl = kl_estimate(own, reference, KlEstimator(str(parameters["kl_estimator"])))
        work.means.add("policy/kl", float(kl[mask].double().sum()), float(mask.sum()))
    rewards = token_rewards(work.rows(str(parameters["scores"])), mask, kl, float(coefficient))
    work.put(str(parameters["rewards"]), rewards, mask)


def _gae(work: Workspace, parameters: Mapping[str, object]) -> None:
    rewards, mask = work.padded(str(parameters["rewards"]))
    field = str(parameters["values"])
    values, _ = work.padded(field)
    gamma, lam = parameters["gamma"], parameters["lam"]
    assert isinstance(gamma, int | float) and isinstance(lam, int | float)
    advantages, returns = generalized_advantages(rewards, values, mask, float(gamma), float(lam))
    work.put(str(parameters["advantages"]), advantages, mask)
    work.put(str(parameters["returns"]), returns, mask)
    critic = role_of(field)
    work.means.add(f"{critic}/value_mean", float(values[mask].double().sum()), float(mask.sum()))
    explained = float(explained_variance(values, returns, mask, work.world.sum))
    share = 1 / work.world.size  # every rank reports the same
    work.means.add(f"{critic}/explained_variance", explained * share, share)


def _whiten(work: Workspace, parameters: Mapping[str, object]) -> None:
    field = str(parameters["advantages"])
    advantages, mask = work.padded(field)
    valid = mask & work.rows(str(parameters["valid"])).bool()[:, None]
    work.put(field, whiten(advantages, valid, work.world.sum), mask)


def _group_advantages(work: Workspace, parameters: Mapping[str, object]) -> None:
    mask = length_mask(lengths_of(work.columns[RESPONSES]))
    found = group_advantages(
        work.rows(str(parameters["scores"])),
        work.groups,
        work.rows(str(parameters["valid"])).bool(),
        bool(parameters["normalize_by_std"]),
    )
    work.means.add("groups/equal", float(found.num_equal_groups), float(found.num_groups))
    work.put("advantages", found.advantages[:, None] * mask, mask)


def _custom(work: Workspace, operation: Operation) -> None:
    """A user's function: takes the columns it reads by name and returns those it writes."""
    assert operation.entrypoint is not None
    module, _, name = operation.entrypoint.partition(":")
    given = {field: work.columns[field] for field in operation.reads}
    try:
        function = getattr(importlib.import_module(module), name)
        written = function(given, **operation.parameters)
        work.columns.update({field: written[field] for field in operation.writes})
    except Exception as error:  # whatever the user's code raises is the user's to read
        raise UserCodeFailed(
            f"the custom operation {operation.entrypoint} failed: got "
            f"{type(error).__name__}: {error}, allowed a mapping with "
            f"{', '.join(operation.writes)}; correct it\n{traceback.format_exc()}"
        ) from None


OPERATIONS: Mapping[str, Callable[[Workspace, Mapping[str, object]], None]] = {
    "token_rewards": _token_rewards,
    "gae": _gae,
    "whiten": _whiten,
    "group_advantages": _group_advantages,
}
"""By the names of rlhf_flow.operations."""
