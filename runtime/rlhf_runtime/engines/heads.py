"""Heads of models: whether files have the one that a role needs, and what a scalar one changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_runtime.models.errors import WrongHead

SCORE = "score.weight"
"""A classifier's head in files: a scalar model is saved as a sequence classifier of one label."""

UNCHANGED_OUTPUTS = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""Settings of models by which logits are changed after the output layer, and their neutral values
(Gemma, Granite, Cohere)."""


def as_scalar(config: Any) -> None:
    """Make a config that of a model with a scalar head: it has a head of its own, and its class
    does to outputs what a classifier's does, which is nothing. Some cap logits or scale them, which
    are no logits here."""
    config.tie_word_embeddings = False
    for name, neutral in UNCHANGED_OUTPUTS.items():
        if hasattr(config, name):
            setattr(config, name, neutral)


def is_classifier(config: Any) -> bool:
    """Whether a transformers config is of a sequence classifier."""
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or ())


def check_head(folder: Path, config: Any, *, value_head: bool, needs_head: bool) -> None:
    """Refuse a folder without the head that is wanted of it.

    Args:
        folder: of the model.
        config: its config, of transformers.
        value_head: whether a scalar head is wanted, instead of one over the vocabulary.
        needs_head: whether it must be there: a scalar head that is trained may start at zero.

    Raises:
        WrongHead: a classifier where a language model is wanted, one of several labels, or a
            language model where a reward model is needed.
    """
    if is_classifier(config):
        _check_classifier(folder, config, value_head, needs_head)
    elif needs_head:
        raise WrongHead(
            "a language model gives no score, and this one is never trained to: got "
            f"{folder} with {', '.join(config.architectures or ('no architecture',))}, allowed a "
            "sequence classifier of one label; choose a reward model, or train one by an algorithm "
            "of type RewardModel"
        )


def without_head(folder: Path, missing: str) -> WrongHead:
    """That a classifier's files lack its head."""
    return WrongHead(
        f"a reward model without its output's weights: got {folder} without {missing}, "
        "allowed one that was saved with its head; copy it again, or choose another"
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
