"""Export a checkpoint's model as a folder in Hugging Face format."""

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

from rlhf_api.spec.checkpoint import ModelFormat
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_cli.checkpoint_lookup import find_best_checkpoint, find_checkpoint, still_exists
from rlhf_cli.staging import recover, staging_folder, write_error
from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.store import Checkpoint
from rlhf_runtime.errors import CannotExport, RuntimeFailure
from rlhf_runtime.models.errors import ModelIncomplete, ModelNotFound
from rlhf_runtime.models.folder import CONFIG_FILE, copy_tokenizer
from rlhf_runtime.models.number_format import saved_format
from rlhf_runtime.models.sources import resolve_model
from rlhf_runtime.roles.saved_models import SavedModel, export_model, saved_models
from rlhf_runtime.telemetry.metric_names import format_bytes

DEFAULT_POLICY = "actor"
"""The policy of checkpoints that do not name theirs."""


@dataclass(frozen=True)
class ExportRequest:
    """Arguments of `rlhf export`."""

    checkpoint: str
    """Folder or address of a step's checkpoint, or of a run."""
    output: str
    """The folder of the model."""
    role: str | None = None
    """Default: the policy."""
    dtype: str | None = None
    """float32 or bfloat16. Default: what the run's manifest asks for."""
    source: Path | None = None
    """A folder with config and tokenizer. Default: the source in the checkpoint's manifest."""
    force: bool = False
    """Replace existing files in `output`."""
    best: bool = False
    """True to take a run's best checkpoint instead of the newest."""


def export_checkpoint(request: ExportRequest) -> None:
    """Export a model; print the chosen checkpoint and the output folder.

    Raises:
        CannotExport: no such checkpoint or role, a damaged checkpoint, or an unusable output.
        ModelNotFound, ModelIncomplete: the source model cannot be used.
        ModelNotSaved: the model cannot be written, as on a full disk.
        StorageFailed: the checkpoint cannot be read.
    """
    output = Path(request.output).expanduser().resolve()
    # First of all, because an earlier export that was killed may have moved the old model aside.
    recover(output)
    # Mistakes in the options are reported before minutes are spent on reading the checkpoint.
    _check_output(output, request)
    _check_source(request.source)
    find = find_best_checkpoint if request.best else find_checkpoint
    checkpoint = find(request.checkpoint, _notify)
    try:
        _export(checkpoint, output, request)
    except RuntimeFailure as error:
        # A run deletes old checkpoints while it trains: then any error of reading only follows from
        # that.
        if still_exists(checkpoint):
            raise
        raise CannotExport(
            f"the checkpoint of step {checkpoint.record.step} was deleted during the export, as a "
            f"run does with old ones: got nothing in {checkpoint.address}; give the command again"
        ) from error


def _export(checkpoint: Checkpoint, output: Path, request: ExportRequest) -> None:
    record, models = checkpoint.record, saved_models(checkpoint.address)
    model = _select_role(models, request.role, record, checkpoint.address)
    # Replacing the output would delete the checkpoint, or the run that contains it.
    _check_outside(output, checkpoint.address)
    with (
        _source_folder(request.source, record, model.role) as source,
        staging_folder(output) as folder,
    ):
        dtype = request.dtype or _default_format(record, source)
        step = f"step {record.step} in {dtype}"
        _notify(f"exporting {model.role} of {step}, from {checkpoint.address}")
        try:
            export_model(model, source, folder, getattr(torch, dtype))
            copy_tokenizer(source, folder)
            size = sum(file.stat().st_size for file in folder.iterdir())
        except (OSError, SafetensorError) as error:
            raise write_error(output, error) from error
    typer.echo(f"wrote {output} ({format_bytes(size)})")


def _check_output(output: Path, request: ExportRequest) -> None:
    """Refuse to overwrite anything, before the checkpoint is read.

    Raises:
        CannotExport: the folder is not empty, or is not a folder.
    """
    if "://" in request.output:
        raise CannotExport(
            f"models are exported to this machine: got {request.output}, allowed a folder; copy it "
            "to its address afterwards"
        )
    if output.exists() and not output.is_dir():
        raise CannotExport(f"the output is a file: got {output}, allowed a folder; choose another")
    if output.is_dir() and any(output.iterdir()) and not request.force:
        raise CannotExport(
            f"the output folder is not empty: got {output}; give --force to replace it, or choose "
            "another folder"
        )


def _check_source(source: Path | None) -> None:
    if source is not None and not (source / CONFIG_FILE).is_file():
        raise CannotExport(
            f"not a model's folder: got --source {source} without {CONFIG_FILE}, allowed the "
            "folder of the model that the role was trained from (its weights are not needed)"
        )


def _check_outside(output: Path, address: str) -> None:
    """Check that neither of output and checkpoint contains the other."""
    saved = Path(address.removeprefix("file://")).resolve()
    if output == saved or output in saved.parents or saved in output.parents:
        raise CannotExport(
            f"the checkpoint and the model would contain one another: got {output} for the "
            f"checkpoint in {saved}; choose another folder"
        )


def _select_role(
    models: dict[str, SavedModel], role: str | None, record: CheckpointRecord, address: str
) -> SavedModel:
    selected = role or record.policy or DEFAULT_POLICY
    # Checkpoints of older versions name no policy: a single trained role must be it.
    trained = [name for name, model in models.items() if model.is_trained]
    if selected not in models and role is None and len(trained) == 1:
        (selected,) = trained
    if selected not in models:
        raise CannotExport(
            f"the checkpoint has no weights of such a role: got --role {selected} for {address}, "
            f"allowed {', '.join(models) or 'none: it holds no model'}; give one of these"
        )
    return models[selected]


def _default_format(record: CheckpointRecord, source: Path) -> str:
    """The number format that the checkpoint's manifest asks for."""
    # Manifests of earlier releases have no such field.
    requested = record.spec.get("checkpoint", {}).get("modelFormat", ModelFormat.SOURCE)
    return saved_format(ModelFormat(requested), source).value


@contextmanager
def _source_folder(source: Path | None, record: CheckpointRecord, role: str) -> Iterator[Path]:
    """Yield the folder that a role was trained from, for its config and tokenizer."""
    if source is not None:
        yield source
        return
    try:
        spec = RLHFJobSpec.model_validate(record.spec)
    except ValidationError as error:
        raise CannotExport(
            "the checkpoint's manifest is of another version of rlhf, so the model "
            f"that {role} was trained from is unknown: got {error.error_count()} problems; give "
            "the folder of that model with --source"
        ) from error
    with tempfile.TemporaryDirectory(prefix="rlhf-export-") as workdir:
        origin = spec.model_for(spec.origin_role(role)).source
        try:
            folder = resolve_model(origin, spec.schedule.seed, Path(workdir))
        except (ModelNotFound, ModelIncomplete) as error:
            raise CannotExport(
                f"{error}; or give the folder of that model on this machine with --source"
            ) from error
        yield folder


def _notify(text: str) -> None:
    typer.echo(text, err=True)
