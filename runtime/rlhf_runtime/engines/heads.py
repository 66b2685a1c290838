"""Model heads: checks that a folder has the head that its role needs; scalar heads in configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_runtime.models.errors import WrongHead

SCORE = "score.weight"
"""Name of a classifier's head in files: a scalar model is saved as a sequence classifier of one
label."""

UNCHANGED_OUTPUTS = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""Settings that change logits after the output layer, and their neutral values (Gemma, Granite,
Cohere)."""


def make_scalar_config(config: Any) -> None:
    """Change a config in place to that of a model with a scalar head."""
    config.tie_word_embeddings = False
    # A scalar is no logit: the model class must not cap or scale it.
    for name, neutral in UNCHANGED_OUTPUTS.items():
        if hasattr(config, name):
            setattr(config, name, neutral)


def is_classifier(config: Any) -> bool:
    """True if a transformers config is that of a sequence classifier."""
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or ())


def check_head(folder: Path, config: Any, *, value_head: bool, needs_head: bool) -> None:
    """Refuse a folder without the required head.

    Args:
        folder: of the model.
        config: its config, of transformers.
        value_head: True if the role needs a scalar head instead of one over the vocabulary.
        needs_head: True if files must have the head: a trained scalar head may start at zero.

    Raises:
        WrongHead: a classifier instead of a language model, one of several labels, or a language
            model instead of a reward model.
    """
    # A language model without a head to score with can still be trained to, from zeros.
    if is_classifier(config):
        _check_classifier(folder, config, value_head, needs_head)
    elif needs_head:
        raise WrongHead(
            "a language model gives no score, and this one is never trained to: got "
            f"{folder} with {', '.join(config.architectures or ('no architecture',))}, allowed a "
            "sequence classifier of one label; choose a reward model, or train one by an algorithm "
            "of type RewardModel"
        )


def missing_head_error(folder: Path, missing: str) -> WrongHead:
    """The error for a classifier without its head in the files."""
    return WrongHead(
        f"a reward model without its output's weights: got {folder} without {missing}, "
        "allowed one with its head; copy it again, or choose another"
    )


def _check_classifier(folder: Path, config: Any, value_head: bool, needs_head: bool) -> None:
    if not value_head:
        raise WrongHead(
            f"a model without an output over the vocabulary: got {folder} with "
            f"{config.architectures[0]}, allowed a causal language model; choose one, or let the "
            "role be a ScalarModel"
        )
    if config.num_labels != 1:
        other = "" if needs_head else " or a causal language model"
        raise WrongHead(
            f"a classifier of several labels gives no score: got {config.num_labels} labels in "
            f"{folder}, allowed 1; choose a reward model{other}"
        )
