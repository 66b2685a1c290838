"""`rlhf export CHECKPOINT OUT`: a checkpoint's model as a folder in Hugging Face format."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import typer
from pydantic import ValidationError
from safetensors import SafetensorError

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.models import Precision
from rlhf_cli.found_checkpoint import find_checkpoint, is_there
from rlhf_cli.staging import not_written, recover, staged
from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.store import Checkpoint
from rlhf_runtime.errors import CannotExport, RuntimeFailure
from rlhf_runtime.models.errors import ModelIncomplete, ModelNotFound
from rlhf_runtime.models.folder import CONFIG_FILE, copy_tokenizer
from rlhf_runtime.models.sources import resolve_model
from rlhf_runtime.roles.saved_models import SavedModel, export_model, saved_models
from rlhf_runtime.telemetry.metric_names import format_bytes

DEFAULT_POLICY = "actor"
"""The policy of checkpoints that do not name theirs."""


@dataclass(frozen=True)
class Export:
    """What is asked for."""

    checkpoint: str
    """A folder or an address of a step's checkpoint, or of a run."""
    output: str
    """The folder that becomes the model."""
    role: str | None = None
    """None: the policy."""
    dtype: str | None = None
    """float32 or bfloat16; None: the one in which the run leaves its model."""
    source: Path | None = None
    """A folder with the config and the tokenizer; None: what the checkpoint's manifest names."""
    force: bool = False
    """Whether what lies in `output` already goes."""


def export_command(asked: Export) -> None:
    """Export; say what is taken and where it is.

    Raises:
        CannotExport: no such checkpoint or role, a damaged one, or no room for it.
        ModelNotFound, ModelIncomplete: of the model that the role was trained from.
        ModelNotSaved: the disk is full.
        StorageFailed: the checkpoint cannot be read.
    """
    output = Path(asked.output).expanduser().resolve()
    recover(output)
    _check_output(output, asked)
    _check_source(asked.source)
    found = find_checkpoint(asked.checkpoint, _say)
    try:
        _export(found, output, asked)
    except RuntimeFailure as error:
        if is_there(found):
            raise
        raise CannotExport(
            f"the checkpoint of step {found.record.step} was deleted while it was read, as a run "
            f"does with older ones: got none any more in {found.address}; give the command again"
        ) from error


def _export(found: Checkpoint, output: Path, asked: Export) -> None:
    record, models = found.record, saved_models(found.address)
    model = _role_of(models, asked.role, record, found.address)
    dtype = asked.dtype or _dtype_of(record, model.role)
    _check_outside(output, found.address)
    _say(f"exporting {model.role} of step {record.step} in {dtype}, from {found.address}")
    with _source_of(asked.source, record, model.role) as source, staged(output) as folder:
        try:
            export_model(model, source, folder, getattr(torch, dtype))
            copy_tokenizer(source, folder)
            size = sum(file.stat().st_size for file in folder.iterdir())
        except (OSError, SafetensorError) as error:
            raise not_written(output, error) from error
    typer.echo(f"wrote {output} ({format_bytes(size)})")


def _check_output(output: Path, asked: Export) -> None:
    """Refuse what must not be overwritten, before anything is read.

    Raises:
        CannotExport: something lies there.
    """
    if "://" in asked.output:
        raise CannotExport(
            f"models are exported to this machine: got {asked.output}, allowed a folder; copy it "
            "to its address afterwards"
        )
    if output.exists() and not output.is_dir():
        raise CannotExport(f"there is a file: got {output}, allowed a folder; choose another")
    if output.is_dir() and any(output.iterdir()) and not asked.force:
        raise CannotExport(
            f"there is something already: got {output}; give --force to replace it, or choose "
            "another folder"
        )


def _check_source(given: Path | None) -> None:
    if given is not None and not (given / CONFIG_FILE).is_file():
        raise CannotExport(
            f"not a model's folder: got --source {given} without {CONFIG_FILE}, allowed the folder "
            "of the model that the role was trained from (its weights are not needed)"
        )


def _check_outside(output: Path, address: str) -> None:
    """Let nobody replace the checkpoint, or the run, by the model that is made of it."""
    saved = Path(address.removeprefix("file://")).resolve()
    if output == saved or output in saved.parents or saved in output.parents:
        raise CannotExport(
            f"the checkpoint and the model would be in one another: got {output} for what is in "
            f"{saved}; choose another folder"
        )


def _role_of(
    models: dict[str, SavedModel], role: str | None, record: CheckpointRecord, address: str
) -> SavedModel:
    wanted = role or record.policy or DEFAULT_POLICY
    trained = [name for name, model in models.items() if model.is_trained]
    if wanted not in models and role is None and len(trained) == 1:
        (wanted,) = trained
    if wanted not in models:
        raise CannotExport(
            f"the checkpoint has no weights of such a role: got --role {wanted} for {address}, "
            f"allowed {', '.join(models) or 'none: it holds no model'}; give one of these"
        )
    return models[wanted]


def _dtype_of(record: CheckpointRecord, role: str) -> str:
    """The format in which the run leaves its model: the one that the role computes in."""
    known = record.precisions.get(role)
    return Precision.BFLOAT16.value if known == Precision.BFLOAT16 else Precision.FLOAT32.value


@contextmanager
def _source_of(given: Path | None, record: CheckpointRecord, role: str) -> Iterator[Path]:
    """The folder that a role was trained from: its config and its tokenizer."""
    if given is not None:
        yield given
        return
    try:
        spec = RLHFJobSpec.model_validate(record.spec)
    except ValidationError as error:
        raise CannotExport(
            "the checkpoint's manifest is of another version of rlhf, so nobody knows the model "
            f"that {role} was trained from: got {error.error_count()} problems; give the folder of "
            "that model with --source"
        ) from error
    with tempfile.TemporaryDirectory(prefix="rlhf-export-") as workdir:
        source = spec.model_for(spec.origin_role(role)).source
        try:
            folder = resolve_model(source, spec.schedule.seed, Path(workdir))
        except (ModelNotFound, ModelIncomplete) as error:
            raise CannotExport(
                f"{error}; or give the folder of that model on this machine with --source"
            ) from error
        yield folder


def _say(text: str) -> None:
    typer.echo(text, err=True)
