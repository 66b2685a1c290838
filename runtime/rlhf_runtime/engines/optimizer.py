"""Optimizer: AdamW with warm-up, decay and gradient clipping."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.lr_scheduler import LambdaLR

from rlhf_runtime.engines.optimizer_settings import OptimizerSettings

STEP = "step"
"""Adam's key of the number of steps; all other state has the parameter's shape."""
GlobalNorm = Callable[[], torch.Tensor]
"""Returns the norm over all gradients of all ranks, equal on all of them."""


def decays(name: str, parameter: torch.Tensor) -> bool:
    """True if weight decay applies to a parameter: to matrices that are no norms or biases."""
    # Some models have a norm for each head, and experts with biases: matrices by their shape.
    last = name.rsplit(".", 2)[-2:]
    return parameter.ndim > 1 and not name.endswith("bias") and not any("norm" in w for w in last)


class Optimizer:
    """Steps the parameters of one model, or a rank's parts of them."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        settings: OptimizerSettings,
        global_norm: GlobalNorm | None = None,
        decayed: Collection[str] | None = None,
    ) -> None:
        """Create Adam and its schedule.

        Args:
            parameters: by name; in float32, stepped by their `grad`.
            settings: of the optimizer.
            global_norm: collective. None: torch computes the norm of its own tensors.
            decayed: names of the parameters that weight decay applies to. None: those for
                which `decays` is true.
        """
        self._named = dict(parameters)
        self._parameters = list(self._named.values())
        self._settings = settings
        self._global_norm = global_norm or self._norm_of_gradients
        if decayed is None:
            decayed = [name for name, parameter in parameters.items() if decays(name, parameter)]
        decayed = set(decayed)
        matrices = [p for name, p in self._named.items() if name in decayed]
        others = [p for name, p in self._named.items() if name not in decayed]
        groups: list[dict[str, Any]] = [
            # A rank may have no part of any parameter: torch refuses an empty optimizer.
            {"params": matrices or [torch.zeros(0)]},
            {"params": others, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.scheduler = LambdaLR(self.adam, settings.rate_factor)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self.scheduler.get_last_lr()[0])

    @property
    def updates(self) -> int:
        """Steps so far, including those that were skipped or left out."""
        return int(self.scheduler.last_epoch)

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Adam's state of each parameter that was stepped, by name; its own tensors."""
        states = {name: self.adam.state.get(p) for name, p in self._named.items()}
        return {name: dict(state) for name, state in states.items() if state}

    def state(self) -> dict[str, Any]:
        """State of the next step, without weights and settings; its tensors are not copies."""
        return {"adam": self.moments(), "updates": self.updates}

    def tensors(self) -> Iterable[torch.Tensor]:
        """All state tensors."""
        return [tensor for state in self.adam.state.values() for tensor in state.values()]

    def expect_state(self, parameters: Collection[str]) -> None:
        """Allocate the state of exactly the parameters with these names."""
        # A restored checkpoint overwrites these tensors in place.
        self.adam.state.clear()
        for name in parameters:
            parameter = self._named[name]
            self.adam.state[parameter] = {
                STEP: torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def resume(self, updates: int) -> None:
        """Continue after so many steps, at the learning rate of the next one."""
        # Not scheduler.step(): it would count, and cannot jump.
        self.scheduler.last_epoch = updates
        rates = [
            base * factor(updates)
            for base, factor in zip(self.scheduler.base_lrs, self.scheduler.lr_lambdas, strict=True)
        ]
        for group, rate in zip(self.adam.param_groups, rates, strict=True):
            group["lr"] = rate
        self.scheduler._last_lr = list(rates)

    def leave_out(self) -> None:
        """Continue at the learning rate of the next step, without a step."""
        self.resume(self.updates + 1)

    def step(self) -> float:
        """Clip, update and clear the gradients; returns their global norm before clipping.

        A norm that is not finite skips the update, but not the step of the schedule.
        """
        norm = self._global_norm()
        clip_grads_with_norm_(self._parameters, self._settings.gradient_clip, norm)
        value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if value == value and value != float("inf"):  # NaN differs from itself
            self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.scheduler.step()
        return value

    def _norm_of_gradients(self) -> torch.Tensor:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return get_total_norm(gradients)
