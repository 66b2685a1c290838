"""Resolves model sources of the manifest to folders on this machine."""

from __future__ import annotations

import os.path
from pathlib import Path

from rlhf_api.spec.models import BuiltinModel, ModelSource
from rlhf_runtime.models import folder
from rlhf_runtime.models.errors import ModelNotFound
from rlhf_runtime.models.tiny_llama import tiny_llama_folder


def resolve_model(source: ModelSource, seed: int, workdir: Path) -> Path:
    """The folder of a source's config, weights and tokenizer, in Hugging Face format.

    seed: schedule.seed; only builtin models depend on it.
    workdir: folder for builtin models.

    Raises:
        ModelNotFound: no such folder, Hugging Face id or revision, or no access to it.
        ModelIncomplete: a folder that lacks a part of a model.
        ValueError: a source with sameAs; ask for the source of the role that it names.
    """
    if source.path is not None:
        return _local(source.path)
    if source.hugging_face is not None:
        from rlhf_runtime.models import hub_model  # imports huggingface_hub, which takes a while

        return hub_model.fetch_model(source.hugging_face, source.revision)
    if source.builtin is not None:
        assert source.builtin is BuiltinModel.TINY_LLAMA
        return tiny_llama_folder(seed, workdir)
    # A role with sameAs uses the folder of another role, which callers resolve.
    raise ValueError(f"sameAs has no folder of its own: ask for the source of {source.same_as}")


def _local(path: str) -> Path:
    # Not Path.expanduser: it raises for an unknown user, and this path is to be in the message.
    folder_path = Path(os.path.expanduser(path))
    try:
        if folder_path.is_dir():
            kind = ""
        else:
            kind = "a file" if folder_path.is_file() else "nothing there"
    except OSError as error:
        kind = error.strerror or str(error)
    if kind:
        do = (
            "correct the path, mount the volume that holds it, or use huggingFace for an id on the "
            "hub"
        )
        if path.endswith(".gguf"):
            do = f"{folder.UNQUANTIZE}, and name its folder"
        raise ModelNotFound(
            f"the model's path is not a folder: got {path} ({kind}), allowed a folder in Hugging "
            f"Face format that the workers can read; {do}"
        )
    folder.require_complete(folder_path, f"the model at {path}")
    return folder_path.resolve()
