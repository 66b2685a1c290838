"""What training on a batch comes to: plain torch, row by row, and what it says of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from rlhf_api.spec.policy_loss import LossAggregation
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss

from .few_rows import FewRows
from .plain_losses import Plain
from .policy_notes import Notes
from .scenario_tools import close

OLD = "actor_log_probs"
"""The old log-probabilities of policy losses."""
Check = Callable[[dict[str, float]], None]
"""Compares metrics."""


def train_plainly(reference: Plain, batch: FewRows, count: int, loss: Loss) -> Check:
    """Train on a batch in so many mini-batches; returns what compares metrics."""
    match loss:
        case ClippedLoss() | ValueLoss():
            check = by_rows(reference, batch, count, loss)
        case BradleyTerry() | Dpo():
            check = by_pairs(reference, batch, count, loss)
        case CrossEntropy():
            assert count == 1, "it is never cut"
            check = by_answers(reference, batch)
    role = role_of(loss)

    def check_all(metrics: dict[str, float]) -> None:
        assert metrics.get(f"{role}/empty_updates", 0) == reference.num_left_out
        assert (f"{role}/gradient_norm" in metrics) == bool(reference.norms)
        norm = float(np.mean(reference.norms or [0.0]))
        close(metrics.get(f"{role}/gradient_norm", 0.0), norm, "gradient norm")
        has_loss = f"{role}/loss" in metrics
        assert has_loss or isinstance(loss, CrossEntropy) and not norm, metrics
        if has_loss:
            close(metrics[f"{role}/loss"], float(np.mean(reference.losses)), "loss")
        check(metrics)

    return check_all


def is_scalar(loss: Loss) -> bool:
    """Whether it is of a model with a scalar head."""
    return isinstance(loss, ValueLoss | BradleyTerry)


def role_of(loss: Loss) -> str:
    """Who is trained."""
    return "critic" if is_scalar(loss) else "actor"


def parts_of(batch: FewRows, count: int) -> Iterator[list[int]]:
    """Rows of so many mini-batches: of every n-th prompt."""
    for number in range(count):
        yield [row for row, group in enumerate(batch.groups) if group % count == number]


def by_rows(reference: Plain, batch: FewRows, count: int, loss: ClippedLoss | ValueLoss) -> Check:
    """Train on the rows that count; returns what compares metrics."""
    valid = reference.columns["reward_valid"].values.astype(bool)
    if loss.finished is not None:
        valid = valid & (reference.columns[loss.finished].values == 1)
    notes, tokens = None, []
    if isinstance(loss, ClippedLoss):
        notes = Notes(reference, loss, loss.kl_coefficient > 0)
        losses = reference.policy_losses(loss, OLD, loss.kl_coefficient > 0)
        threshold = loss.rejection_threshold
    else:
        losses, threshold = reference.value_losses(loss), None
    for _ in range(loss.epochs_per_batch):
        for part in parts_of(batch, count):
            rows = [row for row in part if valid[row] and reference.agrees(row, threshold)]
            tokens.append(sum(int(reference.own(row).sum()) for row in rows))
            if not tokens[-1]:
                reference.leave_out()
                if notes is not None:
                    notes.leave_out(part)
                continue
            if notes is not None:
                notes.take(rows)
            reference.update(rows, losses, loss.aggregation)

    def check(metrics: dict[str, float]) -> None:
        close(metrics[f"{role_of(loss)}/loss_tokens"], float(np.mean(tokens)), "tokens")
        if notes is not None:
            notes.compare(metrics)

    return check


def by_pairs(reference: Plain, batch: FewRows, count: int, loss: BradleyTerry | Dpo) -> Check:
    """Train on all pairs of a prompt's chosen and rejected rows; returns what compares metrics."""
    role, doubt = role_of(loss), loss.label_smoothing if isinstance(loss, Dpo) else 0.0
    margins = []
    for _ in range(loss.epochs_per_batch):
        for part in parts_of(batch, count):
            losses = []
            for one, other in pairs_in(batch, part, reference.columns["preference"].values):
                if isinstance(loss, Dpo):
                    chosen, rejected = (
                        reference.implicit_reward(row, loss.beta) for row in (one, other)
                    )
                    margin = chosen - rejected
                else:
                    margin = reference.margin(one, other)
                margins.append(float(margin.detach()))
                right, wrong = (torch.log(1 + torch.exp(-sign * margin)) for sign in (1, -1))
                losses.append((1 - doubt) * right + doubt * wrong)
            reference.step(torch.stack(losses).mean() if losses else reference.nothing())

    def check(metrics: dict[str, float]) -> None:
        assert (f"{role}/margin" in metrics) == (f"{role}/accuracy" in metrics) == bool(margins)
        if margins:
            close(metrics[f"{role}/margin"], float(np.mean(margins)), "margin")
            close(metrics[f"{role}/accuracy"], float(np.mean(np.array(margins) > 0)), "accuracy")

    return check


def pairs_in(batch: FewRows, rows: list[int], preference: np.ndarray) -> list[tuple[int, int]]:
    """Every chosen with every rejected one of the same prompt."""
    return [
        (one, other)
        for one in rows
        for other in rows
        if batch.groups[one] == batch.groups[other]
        if (preference[one], preference[other]) == (1, -1)
    ]


def by_answers(reference: Plain, batch: FewRows) -> Check:
    """Train on all rows; returns what compares metrics."""
    rows = range(batch.shape.num_rows)
    tokens = sum(int(reference.own(row).sum()) for row in rows)
    reference.update(rows, reference.supervised_losses, LossAggregation.TOKEN_MEAN)

    def check(metrics: dict[str, float]) -> None:
        close(metrics["actor/loss_tokens"], tokens, "tokens")

    return check
