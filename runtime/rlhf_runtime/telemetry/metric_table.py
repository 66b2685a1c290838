"""The table of metrics: name, unit, meaning and direction.

Names that end in <...> stand for a family, such as time/<phase>. Other metrics are also recorded
and drawn, without unit and description.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
    "environment/turns": Metric(
        "Turns", "turns", "Mean number of turns of a conversation with tools", None
    ),
    "environment/calls": Metric(
        "Tool calls", "calls", "Mean number of calls of tools in a conversation", None
    ),
    "environment/malformed_calls": Metric(
        "Malformed calls",
        "fraction",
        "Calls of tools that could not be made: not readable, no such tool, or other arguments",
        False,
        Format.FRACTION,
    ),
    "environment/call_errors": Metric(
        "Calls with errors",
        "fraction",
        "Answers of tools that are error texts, those to malformed calls included",
        False,
        Format.FRACTION,
    ),
    "environment/failed": Metric(
        "Failed conversations",
        "conversations",
        "Conversations without a result: a limit of time, an error of the environment, a death",
        False,
        Format.COUNT,
    ),
    "environment/mismatches": Metric(
        "Rebuilt otherwise",
        "conversations",
        "Conversations that were rebuilt after a restart, and whose tools answered otherwise",
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
