"""The table of metrics: name, unit, meaning and direction.

Names that end in <...> stand for a family, such as time/<phase>. Other metrics are also recorded
and drawn, without unit and description.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rlhf_api.report import REWARD_MEAN


class Format(StrEnum):
    """Format of a value in displays."""

    NUMBER = "number"
    """Four significant digits."""
    FRACTION = "fraction"
    """Three decimals."""
    COUNT = "count"
    """Integer, with separated thousands."""
    SECONDS = "seconds"
    BYTES = "bytes"


@dataclass(frozen=True)
class Metric:
    """The entry of a metric."""

    title: str
    unit: str
    """Empty for pure numbers."""
    description: str
    higher_is_better: bool | None
    """None: neither direction is better."""
    format: Format = Format.NUMBER


METRICS: dict[str, Metric] = {
    REWARD_MEAN: Metric("Reward", "", "Mean reward of a step's responses", True, Format.FRACTION),
    "score/excluded": Metric(
        "Excluded",
        "",
        "Responses left out of training: they could not be scored, or all verifiers abstained",
        False,
        Format.COUNT,
    ),
    "score/abstained": Metric(
        "Abstained",
        "responses",
        "Responses that a verifier had no score for, without a fault: it returned None",
        None,
        Format.COUNT,
    ),
    "score/abstained/<reward>": Metric(
        "Abstained",
        "responses",
        "Responses that this reward's verifier had no score for, without a fault",
        None,
        Format.COUNT,
    ),
    "score/rescored": Metric(
        "Scored again",
        "responses",
        "Responses that were scored again one by one, as the verifier failed on their batch",
        False,
        Format.COUNT,
    ),
    "score/invalid": Metric(
        "Not scored", "responses", "Responses that a verifier could not score", False, Format.COUNT
    ),
    "response/length_mean": Metric(
        "Response length", "tokens", "Mean length of a step's responses", None
    ),
    "response/length_max": Metric(
        "Longest response", "tokens", "Longest of a step's responses", None, Format.COUNT
    ),
    "response/empty": Metric(
        "Empty", "fraction", "Responses without any text", False, Format.FRACTION
    ),
    "response/truncated": Metric(
        "Cut off",
        "fraction",
        "Responses cut off at the length limit or where the context was full",
        False,
        Format.FRACTION,
    ),
    "response/stop_reason/<reason>": Metric(
        "Ended for this reason",
        "fraction",
        "Responses that ended for this reason, such as EndToken or TokenLimit",
        None,
        Format.FRACTION,
    ),
    "response/masked": Metric(
        "Masked",
        "responses",
        "Responses whose tokens are in no loss, by rollout.onStop",
        False,
        Format.COUNT,
    ),
    "response/left_out": Metric(
        "Left out",
        "responses",
        "Responses that count neither in baselines nor in a loss, by rollout.onStop",
        False,
        Format.COUNT,
    ),
    "groups/equal": Metric(
        "Groups without signal",
        "fraction",
        "Prompts that teach nothing: their responses all got the same reward, or too few got one",
        False,
        Format.FRACTION,
    ),
    "evaluation/exact_match": Metric(
        "Exact match", "fraction", "Held-out prompts answered exactly", True, Format.FRACTION
    ),
    "evaluation/reward_mean": Metric(
        "Held-out reward", "", "Mean reward on held-out prompts", True, Format.FRACTION
    ),
    "data/<source>": Metric(
        "Data",
        "",
        "epochs: passes over the rows of a source, of those the last may be unfinished",
        None,
    ),
    "evaluation/<metric>": Metric(
        "Held out", "", "What is measured on held-out prompts; pass_at_k: one of k passes", True
    ),
    "throughput/tokens_per_second": Metric(
        "Throughput", "tokens/s", "A step's tokens over its whole time", True, Format.COUNT
    ),
    "time/step": Metric("Step time", "s", "Time of a whole step", False, Format.SECONDS),
    "time/<phase>": Metric("Phase time", "s", "Time of one phase", False, Format.SECONDS),
    "memory/<process>": Metric(
        "Memory", "bytes", "Resident memory of a process", False, Format.BYTES
    ),
    "throughput/transition_bytes": Metric(
        "Weights moved",
        "bytes",
        "Bytes sent between ranks per weight transition",
        False,
        Format.BYTES,
    ),
}


# Metrics `<role>/<name>`, in the order of charts.
ROLE_METRICS: dict[str, Metric] = {
    "mean": Metric("Mean", "", "Mean score of a step's responses", True, Format.FRACTION),
    "std": Metric("Spread", "", "Standard deviation of the scores", None, Format.FRACTION),
    "kl": Metric("KL to the reference", "nats", "Mean KL per token to the reference", None),
    "entropy": Metric("Entropy", "nats", "Mean entropy of the policy per token", None),
    "loss": Metric("Loss", "", "What is minimized, mean over mini-batches", None),
    "cross_entropy": Metric(
        "Cross-entropy",
        "nats",
        "Mean over the tokens of an auxiliary loss, before its weight",
        False,
    ),
    "rounds": Metric("Rounds", "", "Rounds that flow.repeat took", None, Format.COUNT),
    "accuracy": Metric(
        "Accuracy",
        "fraction",
        "Pairs whose chosen response has the higher score, or implicit reward",
        True,
        Format.FRACTION,
    ),
    "margin": Metric("Margin", "", "Mean score of chosen over rejected responses", True),
    "score": Metric(
        "Score", "", "Mean score that the role's model gives to responses by scores()", None
    ),
    "chosen_reward": Metric(
        "Chosen reward", "", "Mean implicit reward of the chosen responses of pairs", None
    ),
    "rejected_reward": Metric(
        "Rejected reward", "", "Mean implicit reward of the rejected responses of pairs", None
    ),
    "clip_fraction": Metric(
        "Clipped", "fraction", "Tokens whose ratio was clipped", None, Format.FRACTION
    ),
    "clip_fraction_low": Metric(
        "Clipped below", "fraction", "Tokens clipped at a ratio below 1", None, Format.FRACTION
    ),
    "clip_fraction_high": Metric(
        "Clipped above", "fraction", "Tokens clipped at a ratio above 1", None, Format.FRACTION
    ),
    "ratio_max": Metric(
        "Largest ratio", "", "Largest ratio of a token's probability, now and when sampled", None
    ),
    "inverse_ratio_max": Metric(
        "Largest inverse ratio",
        "",
        "Largest ratio of a token's probability, when sampled and now",
        None,
    ),
    "loss_tokens": Metric(
        "Tokens in the loss",
        "tokens",
        "Response tokens of an update that count in its loss: of rows that count, not masked",
        None,
        Format.COUNT,
    ),
    "gradient_norm": Metric("Gradient norm", "", "The gradient's norm before clipping", None),
    "skipped_updates": Metric(
        "Skipped updates",
        "",
        "Updates that were left out: loss or gradient were not finite",
        False,
        Format.COUNT,
    ),
    "empty_updates": Metric(
        "Updates left out",
        "",
        "Updates that were left out: no response counted in their loss",
        False,
        Format.COUNT,
    ),
    "learning_rate": Metric("Learning rate", "", "The optimizer's learning rate", None),
    "log_prob_difference_mean": Metric(
        "Log-prob difference",
        "nats",
        "Mean distance between the trainer's and the generator's log-probability of a token",
        False,
    ),
    "log_prob_difference_max": Metric(
        "Log-prob difference, largest",
        "nats",
        "Largest distance between the trainer's and the generator's log-probability of a token",
        False,
    ),
    "mismatch_kl": Metric(
        "Mismatch KL",
        "nats",
        "Mean KL per token from the generation engine's distribution to the trainer's, by K3",
        False,
    ),
    "rejected_sequences": Metric(
        "Rejected",
        "fraction",
        "Responses left out because the engines disagree on them",
        False,
        Format.FRACTION,
    ),
    "overlong_penalty": Metric(
        "Overlong penalty", "", "Mean score that responses near the length limit lose", False
    ),
    "importance_weight": Metric(
        "Importance weight",
        "",
        "Mean weight of a token, by which the trainer corrects for the generation engine",
        None,
    ),
    "response_kl": Metric(
        "KL of a response", "nats", "Mean over responses of the KL summed over tokens", None
    ),
    "kl_coefficient": Metric("KL coefficient", "", "Weight of the KL penalty on rewards", None),
    "multiplier": Metric("Multiplier", "", "What the constraint on these costs weighs", None),
    "value_mean": Metric("Value", "", "Mean value before a token", None),
    "explained_variance": Metric(
        "Explained variance",
        "fraction",
        "Share of the returns' variance that the values explain",
        True,
        Format.FRACTION,
    ),
}


# A metric's name between an optional region of the step and an optional call.
_AROUND = re.compile(
    r"(?:((?:(?:every-\d+|repeat|until)(?:\.\d+)?/)+))?(.*/[^.]*)\.?(.*)", re.DOTALL
)


class NameParts(NamedTuple):
    """The parts of a metric's name."""

    region: str
    """Region of the step, such as every-10; empty: the complete step."""
    plain: str
    """The name without region and call."""
    call: str
    """The generate call, or the number of a call, such as actor.2; empty: the call that is
    trained on."""


def parse_metric_name(name: str) -> NameParts:
    """Split a metric's name, which `controller/call_names.py` composes."""
    match = _AROUND.fullmatch(name)
    if match is None:
        return NameParts("", name, "")
    return NameParts((match[1] or "").removesuffix("/"), match[2], match[3])


def describe(name: str) -> Metric:
    """The entry of a metric: its own, a role's, its family's, else one made of its name."""
    region, plain, call = parse_metric_name(name)
    metric = _describe(plain)
    if not region and not call:
        return metric
    about = ", ".join(filter(None, [region, call]))
    return dataclasses.replace(metric, title=f"{metric.title} [{about}]")


def _describe(name: str) -> Metric:
    if name in METRICS:
        return METRICS[name]
    group, _, rest = name.partition("/")
    if group and rest in ROLE_METRICS:
        return dataclasses.replace(
            ROLE_METRICS[rest], title=f"{ROLE_METRICS[rest].title} ({group})"
        )
    plain = (rest or name).replace("_", " ")
    title = plain[:1].upper() + plain[1:] + (f" ({group})" if rest else "")
    for pattern, metric in METRICS.items():
        # The family of a name, such as time/<phase>.
        prefix, member, _ = pattern.partition("<")
        if member and name.startswith(prefix):
            return Metric(
                f"{metric.title}: {name.removeprefix(prefix)}",
                metric.unit,
                metric.description,
                metric.higher_is_better,
                metric.format,
            )
    return Metric(title, "", "", None)


def role_metric(metrics: Iterable[str], name: str) -> str | None:
    """The first metric `<role>/<name>` of any role. None: there is none."""
    return next((metric for metric in metrics if metric.partition("/")[2] == name), None)


def format_value(value: float, style: Format) -> str:
    """Format a value; only seconds and bytes get a unit."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    match style:
        case Format.FRACTION:
            return f"{value:.3f}"
        case Format.COUNT:
            return f"{value:,.0f}"
        case Format.SECONDS:
            return format_seconds(value)
        case Format.BYTES:
            return format_bytes(value)
        case Format.NUMBER:
            return format_number(value)


def format_number(value: float) -> str:
    """Four significant digits, without an exponent between 0.001 and a million."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-3:
        # Python writes e-05 and e+06; shorter is e-5 and e6.
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}"


def format_seconds(seconds: float) -> str:
    """A duration: 340 ms, 1.25 s, 48 s, 3 min 20 s, 2 h 5 min."""
    # Each limit is half a digit early: 999.7 ms is written as 1.00 s, not as 1000 ms.
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def format_bytes(size: float) -> str:
    """A size: 512 B, 1.5 MiB, 80.0 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
