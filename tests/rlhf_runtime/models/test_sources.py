from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors.numpy import save_file

from rlhf_api.spec.models import ModelSource
from rlhf_runtime.models import folder as model_folder
from rlhf_runtime.models import hub_model
from rlhf_runtime.models.errors import ModelIncomplete, ModelNotFound
from rlhf_runtime.models.sources import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local hub cache with the model acme/tiny, and no network."""
    model = tmp_path / "hub" / "models--acme--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    shutil.copytree(tiny_llama, model / "snapshots" / COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return model / "snapshots" / COMMIT


def resolve(tmp_path: Path, **source: str) -> Path:
    return resolve_model(ModelSource.model_validate(source), 0, tmp_path / "work")


def test_a_gguf_file_is_named_as_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "model.Q4.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match="model.Q4.gguf .a file.*quantized for inference"):
        resolve(tmp_path, path=str(file))
    with pytest.raises(ModelIncomplete, match="with model.Q4.gguf, missing.*for inference"):
        resolve(tmp_path, path=str(file.parent))


@pytest.fixture
def model(tmp_path: Path, tiny_llama: Path) -> Path:
    """A copy of the builtin model that a test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def test_a_builtin_model_is_written_into_the_work_folder(tmp_path: Path) -> None:
    folder = resolve(tmp_path, builtin="TinyLlama")
    assert folder.is_relative_to(tmp_path / "work")
    assert (folder / "model.safetensors").is_file()


def test_a_path_is_taken_as_it_is(tmp_path: Path, model: Path) -> None:
    assert resolve(tmp_path, path=str(model)) == model
    assert not (tmp_path / "work").exists()


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere.*nothing there") as caught:
        resolve(tmp_path, path=str(tmp_path / "nowhere"))
    assert (caught.value.reason, int(caught.value.exit_code)) == ("ModelNotFound", 3)


def test_a_file_is_no_model(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ModelNotFound, match="a file"):
        resolve(tmp_path, path=str(model / "config.json"))


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        (["config.json"], "missing config.json"),
        (["model.safetensors"], "missing weights"),
        (["config.json", "model.safetensors"], "missing config.json, weights"),
    ],
)
def test_what_a_folder_lacks_is_named(
    tmp_path: Path, model: Path, gone: list[str], missing: str
) -> None:
    for name in gone:
        (model / name).unlink()
    with pytest.raises(ModelIncomplete, match=missing) as caught:
        resolve(tmp_path, path=str(model))
    assert caught.value.reason == "ModelIncomplete"


def test_missing_shards_are_named(tmp_path: Path, model: Path) -> None:
    names = [f"model-0000{part}-of-00003.safetensors" for part in (1, 2, 3)]
    (model / "model.safetensors").rename(model / names[1])
    index = {"weight_map": {f"weight{part}": name for part, name in enumerate(names)}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelIncomplete, match=f"missing {names[0]}, {names[2]};"):
        resolve(tmp_path, path=str(model))
    for part, name in enumerate(names):
        save_file({f"weight{part}": np.zeros(4, np.float32)}, model / name)
    assert resolve(tmp_path, path=str(model)) == model
    index["weight_map"] |= {"weight4": names[1], "weight5": names[1]}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelIncomplete, match=rf"{names[1]} without weight4 and 1 more;"):
        resolve(tmp_path, path=str(model))


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (-1, r"cut off: got .*model\.safetensors with \d+ bytes, allowed the \d+ of its header"),
        (100, "not a safetensors file: got .*, 100 bytes; copy it again"),
        (4, "not a safetensors file: got .*, 4 bytes"),
        (None, "a pointer of Git LFS; run `git lfs pull` there"),
    ],
)
def test_weights_that_are_not_whole_are_refused(
    tmp_path: Path, model: Path, keep: int | None, message: str
) -> None:
    file = model / "model.safetensors"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    file.write_bytes(pointer if keep is None else file.read_bytes()[:keep])
    with pytest.raises(ModelIncomplete, match=message):
        resolve(tmp_path, path=str(model))


@pytest.mark.parametrize("offsets", [{"data_offsets": [0, "8"]}, {"data_offsets": []}, {}, []])
def test_headers_of_other_contents_are_refused(tmp_path: Path, model: Path, offsets: Any) -> None:
    header = json.dumps({"weight": offsets}).encode()
    file = model / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelIncomplete, match="not a safetensors file: got .*; copy it again"):
        resolve(tmp_path, path=str(model))


def test_an_index_of_other_contents_is_refused(tmp_path: Path, model: Path) -> None:
    index = {"weight_map": {"weight": 3}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelIncomplete, match=r"no file of a tensor: got 3 for weight in .*index"):
        resolve(tmp_path, path=str(model))


def test_a_header_is_read_only_up_to_what_the_format_allows(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length is whatever the file's first bytes say."""
    length = int.from_bytes((model / "model.safetensors").read_bytes()[:8], "little")
    monkeypatch.setattr(model_folder, "MAX_HEADER_BYTES", length)
    resolve(tmp_path, path=str(model))
    monkeypatch.setattr(model_folder, "MAX_HEADER_BYTES", length - 1)
    with pytest.raises(ModelIncomplete, match="not a safetensors file"):
        resolve(tmp_path, path=str(model))


def test_the_home_of_nobody_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"got ~nobody-at-all/model \(nothing there\)"):
        resolve(tmp_path, path="~nobody-at-all/model")


def test_older_weight_files_are_taken_too(tmp_path: Path, model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert resolve(tmp_path, path=str(model)) == model


def test_a_hub_model_comes_from_the_local_cache(tmp_path: Path, hub: Path) -> None:
    assert resolve(tmp_path, huggingFace="acme/tiny") == hub
    assert resolve(tmp_path, huggingFace="acme/tiny", revision="main") == hub
    assert resolve(tmp_path, huggingFace="acme/tiny", revision=COMMIT) == hub


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("source", "command"),
    [
        ({"huggingFace": "acme/other"}, "`hf download acme/other`"),
        (
            {"huggingFace": "acme/tiny", "revision": "v2"},
            "`hf download acme/tiny --revision v2`",
        ),
    ],
)
def test_a_hub_model_that_is_not_there_says_how_to_fetch_it(
    tmp_path: Path, source: dict[str, str], command: str
) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(tmp_path, **source)
    assert caught.value.reason == "ModelNotFound"
    assert command in str(caught.value)
    assert "HF_HOME" in str(caught.value)


@pytest.mark.usefixtures("hub")
def test_what_is_no_hub_id_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="not a Hugging Face id: got a/b/c"):
        resolve(tmp_path, huggingFace="a/b/c")


def test_a_cached_copy_without_weights_is_incomplete(tmp_path: Path, hub: Path) -> None:
    (hub / "model.safetensors").unlink()
    with pytest.raises(ModelIncomplete, match="acme/tiny.*missing weights"):
        resolve(tmp_path, huggingFace="acme/tiny")


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (GatedRepoError, 403, "gated.*HF_TOKEN"),
        (RepositoryNotFoundError, 401, "does not exist or is private.*HF_TOKEN"),
        (RevisionNotFoundError, 404, r"no such revision: got acme/tiny.*source\.revision"),
        (HfHubHTTPError, 503, r"cannot be reached.*HfHubHTTPError"),
    ],
)
def test_what_the_hub_refuses_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[HfHubHTTPError],
    status: int,
    told: str,
) -> None:
    def refuse(*_: object, **__: object) -> str:
        request = httpx.Request("GET", "https://hub.invalid/acme/tiny")
        raise error("refused", response=httpx.Response(status, request=request))

    monkeypatch.setattr(hub_model, "snapshot_download", refuse)
    with pytest.raises(ModelNotFound, match=told):
        resolve(tmp_path, huggingFace="acme/tiny", revision="main")


def test_same_as_is_the_callers_to_follow(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="actor"):
        resolve(tmp_path, sameAs="actor")
