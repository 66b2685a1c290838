"""Learning rates, and which parameters decay, against the formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlhf_api.spec.models import LearningRateDecay
from rlhf_runtime.engines.optimizer import Optimizer

from .contract_setup import settings


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (LearningRateDecay.NONE, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1]),
        (LearningRateDecay.LINEAR, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25, 0]),
        (LearningRateDecay.COSINE, [0.25, 0.5, 0.75, 1, 1, 0.853553, 0.5, 0.146447, 0]),
    ],
)
def test_the_first_update_has_a_rate_and_decay_ends_at_zero(
    decay: LearningRateDecay, expected: list[float]
) -> None:
    chosen = settings(decay=decay, warmup_updates=4, total_updates=8)
    assert [chosen.rate_factor(update) for update in range(9)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("decay", list(LearningRateDecay))
def test_without_warm_up_the_first_update_has_the_full_rate(decay: LearningRateDecay) -> None:
    assert settings(decay=decay, warmup_updates=0, total_updates=1).rate_factor(0) == 1


def test_a_warm_up_longer_than_the_job_keeps_rising() -> None:
    chosen = settings(decay=LearningRateDecay.LINEAR, warmup_updates=10, total_updates=4)
    assert [chosen.rate_factor(update) for update in range(4)] == [0.1, 0.2, 0.3, 0.4]


def parameters() -> dict[str, torch.Tensor]:
    """A matrix, a norm and a bias of ones, with gradients of zero."""
    shapes = {"matrix": (2, 3), "norm": (3,), "bias": (3,)}
    tensors = {name: torch.ones(shape, requires_grad=True) for name, shape in shapes.items()}
    for tensor in tensors.values():
        tensor.grad = torch.zeros_like(tensor)
    return tensors


def values(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    """The first element of each tensor."""
    return {name: float(tensor.detach().flatten()[0]) for name, tensor in tensors.items()}


def test_norms_and_biases_do_not_decay() -> None:
    tensors = parameters()
    Optimizer(tensors, settings(weight_decay=100.0)).step()
    assert values(tensors) == pytest.approx({"matrix": 0.9, "norm": 1, "bias": 1})


def test_norms_of_heads_and_biases_of_experts_do_not_decay() -> None:
    names = ("layers.0.q_norm.weight", "experts.gate_up_proj_bias", "mlp.up.weight")
    tensors = {name: torch.ones(2, 2, requires_grad=True) for name in names}
    for tensor in tensors.values():
        tensor.grad = torch.zeros_like(tensor)
    Optimizer(tensors, settings(weight_decay=100.0)).step()
    assert list(values(tensors).values()) == pytest.approx([1, 1, 0.9])


def test_shards_decay_as_the_parameters_that_they_are_parts_of() -> None:
    tensors = {name: tensor.detach().flatten() for name, tensor in parameters().items()}
    for tensor in tensors.values():
        tensor.grad = torch.zeros_like(tensor)
    Optimizer(tensors, settings(weight_decay=100.0), decayed=["matrix"]).step()
    assert values(tensors) == pytest.approx({"matrix": 0.9, "norm": 1, "bias": 1})


@pytest.mark.parametrize("names", [("matrix",), ("norm", "bias"), ()])
def test_a_rank_may_have_parameters_of_one_kind_or_none(names: tuple[str, ...]) -> None:
    tensors = {name: tensor for name, tensor in parameters().items() if name in names}
    optimizer = Optimizer(tensors, settings(weight_decay=100.0), norm_of_nothing)
    optimizer.step()
    assert set(optimizer.moments()) == set(names)


def norm_of_nothing() -> torch.Tensor:
    return torch.zeros(())


def test_a_resumed_schedule_has_the_rate_of_its_next_update() -> None:
    chosen = replace(settings(), warmup_updates=4, total_updates=8)
    begun, resumed = (Optimizer(parameters(), chosen) for _ in range(2))
    for _ in range(3):
        begun.step()
    resumed.resume(3)
    assert resumed.learning_rate == begun.learning_rate == pytest.approx(1e-3)
    assert [group["lr"] for group in resumed.adam.param_groups] == [1e-3, 1e-3]


def test_a_step_that_is_left_out_counts_for_the_rate_only() -> None:
    chosen = replace(settings(), warmup_updates=4, total_updates=8)
    weights = parameters()
    optimizer = Optimizer(weights, chosen)
    before, rate = values(weights), optimizer.learning_rate
    optimizer.leave_out()
    assert values(weights) == before and not optimizer.moments()
    assert optimizer.updates == 1 and optimizer.learning_rate == pytest.approx(2 * rate)
