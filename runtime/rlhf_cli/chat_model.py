"""The model that `rlhf chat` talks to, and the settings of its job."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.row_sources import DataSource
from rlhf_api.spec.truncation import Truncation
from rlhf_cli.earlier_run import read_job
from rlhf_cli.evaluated_model import find_model
from rlhf_cli.export import ExportRequest, export_checkpoint
from rlhf_runtime.checkpoint.store import is_checkpoint_name
from rlhf_runtime.data.rows import single_sources
from rlhf_runtime.data.source_setting import Split
from rlhf_runtime.models.sources import resolve_model
from rlhf_runtime.telemetry.run_folder import RunFolder

DEFAULT_TEMPERATURE = 1.0
DEFAULT_MAX_TOKENS = 512


@dataclass(frozen=True)
class ChatRequest:
    """Arguments of `rlhf chat`."""

    model: str
    """A run, a step's checkpoint, a model's folder, a builtin model, or an id on the hub."""
    best: bool = False
    """True to take a run's best checkpoint."""
    temperature: float | None = None
    """None: the job's, as for the settings below."""
    max_tokens: int | None = None
    system: str | None = None
    seed: int | None = None
    """None: another one every time."""


@dataclass(frozen=True)
class ChatModel:
    """A model's folder, and how it is asked."""

    folder: Path
    source: DataSource
    """Form of prompts: system prompt, chat template and its arguments."""
    temperature: float
    """Sampling temperature; 0 is greedy."""
    max_tokens: int
    """Limit of an answer's tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer."""
    end_tokens: tuple[str, ...] = ()
    """Texts of tokens that end an answer, besides the model's own end tokens."""
    truncation: Truncation = Truncation()
    """The job's."""
    cuts_at_context: bool = False
    """True if an answer ends where the context is full; else every answer must fit."""


@contextmanager
def open_model(request: ChatRequest) -> Iterator[ChatModel]:
    """Yield the model that a command names.

    Raises:
        ModelNotFound, ModelIncomplete: there is no such model.
        CannotExport, StorageFailed: the checkpoint cannot be used.
    """
    path = Path(os.path.expanduser(request.model))
    with TemporaryDirectory(prefix="rlhf-chat-") as workdir:
        if request.best or is_checkpoint_name(path.name) or _has_only_checkpoints(path):
            folder = Path(workdir) / "model"
            export_checkpoint(ExportRequest(request.model, str(folder), best=request.best))
        else:
            folder = resolve_model(find_model(request.model).source, 0, Path(workdir))
        yield _with_settings(folder, _spec_of(path), request)


def _with_settings(folder: Path, spec: RLHFJobSpec | None, request: ChatRequest) -> ChatModel:
    """Add the settings of the command, else of the job, else the defaults."""
    stop: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    if spec is None:
        # The form of prompts of data that set nothing.
        source = DataSource.model_validate({"path": "-"})
        temperature, max_tokens = DEFAULT_TEMPERATURE, DEFAULT_MAX_TOKENS
    else:
        # Of several sources the first one: a conversation has one form.
        (_, source), *_ = single_sources(Split.TRAIN, spec.data.train)
        temperature, max_tokens = spec.rollout.temperature, spec.rollout.max_response_tokens
        stop, end_tokens = spec.rollout.stop, spec.rollout.end_tokens
    if request.system is not None:
        source = source.model_copy(update={"system_prompt": request.system})
    return ChatModel(
        folder,
        source,
        temperature if request.temperature is None else request.temperature,
        max_tokens if request.max_tokens is None else request.max_tokens,
        stop,
        end_tokens,
        Truncation() if spec is None else spec.rollout.truncation,
        spec is not None and spec.rollout.on_stop.context_limit is not None,
    )


def _has_only_checkpoints(path: Path) -> bool:
    run = RunFolder(path)
    return run.manifest.is_file() and not run.model.is_dir()


def _spec_of(path: Path) -> RLHFJobSpec | None:
    """The manifest of the run that a path is in, or of which it is the model or a checkpoint; None
    without one that can be read."""
    folders = (path, *path.absolute().parents[:2])
    jobs = (read_job(RunFolder(folder)) for folder in folders if folder.is_dir())
    return next((job.spec for job in jobs if job is not None), None)
