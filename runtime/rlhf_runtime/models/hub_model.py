"""Models of the Hugging Face hub: from the local cache, or downloaded if there is a network.

Imported only for manifests that name such a model.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from rlhf_runtime.models import folder
from rlhf_runtime.models.errors import ModelNotFound

_NEEDED_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "tokenizer*"]
_WEIGHTS = ["*.safetensors"]
_LEGACY_WEIGHTS = ["pytorch_model*.bin"]


def fetch_model(name: str, revision: str | None) -> Path:
    """The folder of a hub model in the local cache; downloads it if necessary.

    revision: branch, tag or commit; None is the main branch.

    Raises:
        ModelNotFound: no such id or revision, no access, or no network and not in the cache.
        ModelIncomplete: the cached copy lacks a part of the model.
    """
    # Many models publish both formats: the older one is fetched only without the newer.
    path = _snapshot(name, revision, _NEEDED_FILES + _WEIGHTS)
    if not any(path.glob("*.safetensors")):
        path = _snapshot(name, revision, _NEEDED_FILES + _LEGACY_WEIGHTS)
    folder.require_complete(path, f"the model {name}, as the local cache has it,")
    return path


def _snapshot(name: str, revision: str | None, patterns: list[str]) -> Path:
    title = name if revision is None else f"{name} at revision {revision}"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except GatedRepoError as error:  # a subclass of RepositoryNotFoundError, so it comes first
        raise ModelNotFound(
            f"the model is gated: got {title}; accept its terms on the hub and give a token "
            "(HF_TOKEN, or hub.tokenSecretName on a cluster)"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(
            f"the model has no such revision: got {title}; correct or remove source.revision"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"the model does not exist or is private: got {title}; correct the id, or give a token "
            "(HF_TOKEN, or hub.tokenSecretName on a cluster)"
        ) from error
    except HFValidationError as error:
        raise ModelNotFound(
            f"not a Hugging Face id: got {name}, allowed owner/name; for a folder use path"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        fetch = f"hf download {name}" + (f" --revision {revision}" if revision else "")
        raise ModelNotFound(
            f"the model is not in the local cache and the hub cannot be reached: got {title} "
            f"({type(error).__name__}); run `{fetch}` where there is a network and share HF_HOME, "
            "unset HF_HUB_OFFLINE if it is set, or give the model's folder with path"
        ) from error
