"""Rows of Hugging Face datasets, from the hub, its local cache or a local dataset folder."""

# Imported only for jobs with such a dataset: importing `datasets` takes seconds.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import datasets
from datasets.exceptions import DatasetNotFoundError, DatasetsError

from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import DataError, DataNotFound, DataUnreadable


def read_dataset(source: DataSource, split: str, setting: str) -> Iterator[Mapping[str, Any]]:
    """Read the rows of a Hugging Face dataset.

    Args:
        source: of the rows.
        split: of the dataset.
        setting: the manifest's field of the source, such as data.train, for messages.

    Raises:
        DataNotFound: the dataset, its configuration or its split does not exist, is gated, or
            cannot be reached and is not in the local cache.
        DataUnreadable: its files cannot be parsed.
    """
    assert source.hugging_face is not None
    # Its bars would mix with this process's log.
    datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(source.hugging_face, source.configuration, split=split)
    except (DatasetsError, OSError, ValueError) as error:
        raise _translate_error(error, source, split, setting) from error
    return iter(dataset)


def _translate_error(error: Exception, source: DataSource, split: str, setting: str) -> DataError:
    name, text = source.hugging_face, str(error)
    # `datasets` raises few types of exceptions; the text tells the cause.
    if "gated" in text:
        return DataNotFound(
            f"{setting}.huggingFace is gated: got {name}: {text}; accept its terms on the hub and "
            "give a token (HF_TOKEN, or hub.tokenSecretName on a cluster)"
        )
    if isinstance(error, ConnectionError):
        return DataNotFound(
            f"{setting}.huggingFace cannot be reached and is not in the local cache: got {name}: "
            f"{text}; fetch it where there is a network (load_dataset of the "
            "datasets package) and share HF_HOME, or use a local file with path"
        )
    if "Config name is missing" in text or "BuilderConfig" in text or "for config" in text:
        return DataNotFound(
            f"{setting}.configuration does not fit {name}: got {source.configuration or 'none'}: "
            f"{text}; set {setting}.configuration to one that exists"
        )
    if "split" in text.lower() and isinstance(error, ValueError):
        return DataNotFound(
            f"{setting}.split does not exist in {name}: got {split}: {text}; set {setting}.split"
        )
    if isinstance(error, DatasetNotFoundError | FileNotFoundError):
        return DataNotFound(
            f"{setting}.huggingFace does not exist or is private: got {name}: {text}; correct the "
            "id, or give a token (HF_TOKEN, or hub.tokenSecretName on a cluster)"
        )
    return DataUnreadable(
        f"{setting}.huggingFace cannot be read: got {name}: {text}; check the dataset's files"
    )
