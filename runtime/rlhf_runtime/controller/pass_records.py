"""Records of passes: the metrics of steps and evaluations under the names of reports. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from rlhf_api.report import REWARD_MEAN
from rlhf_api.spec.checkpoint import EVALUATION_LENGTH, EVALUATION_REWARD
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.controller.steps import PassResult
from rlhf_runtime.telemetry.records import StepRecord


def step_record(step: int, done: PassResult, rewards: Sequence[str]) -> StepRecord:
    """Build the record of a training step.

    Args:
        rewards: the roles that score; one of them stands for the job.
    """
    headline = headline_metric(rewards)
    mean = None if headline is None else done.metrics.get(headline)
    shown = {} if mean is None else {REWARD_MEAN: mean}
    rates = {"throughput/tokens_per_second": done.tokens / done.seconds, "time/step": done.seconds}
    times = {f"time/{phase}": seconds for phase, seconds in done.phases.items()}
    return StepRecord(
        step=step,
        metrics={**done.metrics, **shown, **rates, **times},
        phases=done.phases,
        seconds=done.seconds,
        tokens=done.tokens,
        spans=done.spans,
        memory=done.memory,
        finished=time.time(),
    )


def evaluation_metrics(
    done: PassResult,
    roles: Sequence[str],
    rewards: Sequence[RewardSpec],
    measured: Mapping[str, str],
    sources: Sequence[str] = (),
) -> dict[str, float]:
    """Return the evaluation metrics, with those that verifiers declare to measure.

    All are over all responses, those of a source over its own.

    Args:
        done: the evaluation.
        roles: roles that score; one of them stands for the job.
        rewards: of the job.
        measured: metrics by the reward's name.
        sources: names of several sources of evaluation prompts.
    """
    metrics = {EVALUATION_LENGTH: done.metrics["response/length_mean"]}
    # Missing where nothing was scored, or where models add to the reward.
    optional: dict[str, str] = {}
    if headline := headline_metric(roles):
        optional[EVALUATION_REWARD] = headline
        own = headline.removesuffix("mean")
        # Those of a source have its name before.
        passing = re.compile(rf"{re.escape(own)}((?:[^/]+/)?pass_at_\d+)").fullmatch
        matches = filter(None, map(passing, done.metrics))
        optional |= {f"evaluation/{match[1]}": match[0] for match in matches}
    for source in sources:
        optional[f"evaluation/{source}/length_mean"] = f"response/{source}/length_mean"
    for part in ("", *(f"{source}/" for source in sources)):
        for reward in rewards:
            if reward.name in measured:
                name = f"evaluation/{part}{measured[reward.name]}"
                optional[name] = f"{reward.role}/{part}{reward.name}"
        if headline and part:
            optional[f"evaluation/{part}reward_mean"] = headline.replace("/", f"/{part}")
    return metrics | {
        name: done.metrics[metric] for name, metric in optional.items() if metric in done.metrics
    }


def headline_metric(rewards: Sequence[str]) -> str | None:
    """Return the metric of a step that stands for the job."""
    means = [f"{role}/mean" for role in rewards]
    return REWARD_MEAN if REWARD_MEAN in means else next(iter(means), None)
