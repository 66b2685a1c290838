"""The model that `rlhf evaluate` is asked for: a folder, a run's, or an id on the hub."""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.spec.models import BuiltinModel, ModelSource
from rlhf_runtime.checkpoint.store import is_checkpoint_name
from rlhf_runtime.models.errors import ModelNotFound
from rlhf_runtime.models.folder import CONFIG_FILE, require_complete
from rlhf_runtime.telemetry.run_folder import RunFolder


@dataclass(frozen=True)
class EvaluatedModel:
    """A model, and the training behind it."""

    source: ModelSource
    step: int = 0
    """Step of the run whose weights it has; 0: no run wrote it."""


def find_model(text: str) -> EvaluatedModel:
    """Find the model of a command's argument.

    Args:
        text: a folder in Hugging Face format, the folder of a run, a builtin model, or an id on the
            Hugging Face hub, also as ID@REVISION.

    Raises:
        ModelNotFound: nothing there, or a run or checkpoint that holds no such folder.
        ModelIncomplete: the folder lacks a part of a model.
    """
    # Not Path.expanduser, which raises for an unknown user.
    path = Path(os.path.expanduser(text))
    if path.is_dir():
        folder = _model_folder(path, text)
        require_complete(folder, f"the model at {text}")
        return EvaluatedModel(ModelSource(path=str(folder.resolve())), _step_of(folder.resolve()))
    if text in set(BuiltinModel):
        return EvaluatedModel(ModelSource(builtin=BuiltinModel(text)))
    name, _, revision = text.partition("@")
    could_be_id = not name.startswith((".", "/", "~")) and name.count("/") < 2
    # A run's folder that is misspelled looks like an id; only a revision tells an id from it.
    is_in_folder = len(path.parts) > 1 and Path(path.parts[0]).is_dir() and not revision
    if path.exists() or is_in_folder or not could_be_id:
        kind = "a file" if path.exists() else "nothing there"
        as_id = f", or write {name}@main for the id" if could_be_id else ""
        raise ModelNotFound(
            f"no such model: got {text} ({kind}), allowed a folder in Hugging Face format, the "
            f"folder of a finished run, or an id on the Hugging Face hub; correct it{as_id}"
        )
    return EvaluatedModel(ModelSource(hugging_face=name, revision=revision or None))


def _model_folder(path: Path, text: str) -> Path:
    """The folder of a model: the given one, or that of a run's final model."""
    if (path / CONFIG_FILE).exists():
        return path
    run = RunFolder(path)
    is_run = run.metrics.exists() or run.manifest.exists()
    if is_run and run.model.is_dir():
        return run.model
    if is_run or is_checkpoint_name(path.name):
        kind = "a run without a final model" if is_run else "a checkpoint"
        raise ModelNotFound(
            f"no model in Hugging Face format: got {text}, {kind}, allowed a model's folder or a "
            f"finished run's; write one by `rlhf export {text} FOLDER`, and evaluate that folder"
        )
    return path


def _step_of(folder: Path) -> int:
    """The step whose weights a run wrote to a folder; 0 if no run did."""
    run = RunFolder(folder.parent)
    if folder != run.model or not run.metrics.exists():
        return 0
    records = run.read()
    return records.reached_step if records.model_step is None else records.model_step
