"""`rlhf export` on checkpoints that one process has saved; test_runs exports those of real runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MixtralConfig
from typer.testing import CliRunner, Result

from rlhf_api.changes import spec_document
from rlhf_api.reading.manifest import load_file as load_jobs
from rlhf_cli.app import app
from rlhf_cli.staging import staging_folder
from rlhf_runtime.checkpoint.digesting_writer import DigestingWriter
from rlhf_runtime.checkpoint.record import CheckpointRecord, SavedFile
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.models.tiny_llama import tiny_llama_folder, write_tiny_llama
from rlhf_runtime.roles.saved_models import SavedModel, saved_models

from ..object_store import s3_bucket

EXAMPLES = Path(__file__).parents[2] / "examples"


def export(*words: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def weights_of(seed: int, place: Path, scalar: bool = False) -> dict[str, torch.Tensor]:
    found = load_file(tiny_llama_folder(seed, place) / "model.safetensors")
    return found | ({"lm_head.weight": torch.ones(1, 128)} if scalar else {})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with checkpoints of steps 1 and 2, of an actor and a critic."""
    place: Path = tmp_path_factory.mktemp("exports")
    (job,) = load_jobs(EXAMPLES / "02-sort-ppo.yaml")
    store = CheckpointStore(str(place / "run" / "checkpoints"))
    for step in (1, 2):
        models = {
            "actor": weights_of(step, place),
            "critic": weights_of(step + 10, place, scalar=True),
        }
        write(store, step, models, spec_document(job.spec))
    return place / "run"


def write(
    store: CheckpointStore, step: int, models: dict[str, Any], spec: dict[str, Any], **fields: Any
) -> str:
    writer = DigestingWriter(f"{store.begin(step)}/local")
    state = {
        f"roles.{role}.{key}": value
        for role, weights in models.items()
        for key, value in {
            **{f"weights.{name}": tensor for name, tensor in weights.items()},
            "version": step,
            "optimizer.updates": step,
        }.items()
    }
    with pytest.warns(UserWarning, match="single process"):
        save(state, storage_writer=writer, no_dist=True)
    files: dict[str, SavedFile] = {f"local/{name}": file for name, file in writer.written.items()}
    return store.commit(CheckpointRecord(step, 1, spec, files=files, **fields)).address


def test_the_newest_policy_of_a_run_becomes_a_model(run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "the newest complete checkpoint is of step 2" in done.stderr
    assert "exporting actor of step 2 in float32" in done.stderr
    assert done.stdout.startswith(f"wrote {tmp_path / 'out'} (")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, tensor in weights_of(2, run.parent).items():
        assert torch.equal(loaded.get_parameter(name).detach(), tensor), name
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("12=")["input_ids"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


def test_the_best_policy_of_a_run_becomes_a_model(run: Path, tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path / "saved"))
    for step, reward in ((1, 0.25), (2, 0.75), (3, 0.5)):
        models = {"actor": weights_of(step, run.parent)}
        write(store, step, models, store_spec(run), metrics={"evaluation/reward_mean": reward})
    write(store, 4, {"actor": weights_of(4, run.parent)}, store_spec(run))
    done = export(store.address, tmp_path / "out", "--best")
    assert "the best checkpoint is of step 2: evaluation/reward_mean is 0.75" in done.stderr
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in weights_of(2, run.parent).items():
        assert torch.equal(found[name], tensor), name
    (file, *_) = (tmp_path / "saved" / "step-00000002").rglob("*.distcp")
    file.write_bytes(b"")
    done = export(store.address, tmp_path / "next", "--best")
    assert "the checkpoint of step 2 cannot be used" in done.stderr
    assert "the best checkpoint is of step 3: evaluation/reward_mean is 0.5" in done.stderr


def test_there_is_no_best_policy_without_an_evaluation(run: Path, tmp_path: Path) -> None:
    refused = export(run, tmp_path / "out", "--best")
    assert refused.exit_code == 2
    assert "got 2 checkpoints" in refused.stderr
    assert "none intact and of a step with evaluation/reward_mean" in refused.stderr
    refused = export(run / "checkpoints" / "step-00000001", tmp_path / "out", "--best")
    assert refused.exit_code == 2 and "got the step step-00000001" in refused.stderr


def test_a_step_a_role_and_a_format_are_those_asked_for(run: Path, tmp_path: Path) -> None:
    step = run / "checkpoints" / "step-00000001"
    done = export(step, tmp_path / "out", "--role", "critic", "--dtype", "bfloat16")
    assert done.exit_code == 0, done.output
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head.weight" not in found and found["score.weight"].shape == (1, 128)
    for name, tensor in weights_of(11, run.parent).items():
        if name != "lm_head.weight":
            assert torch.equal(found[name], tensor.to(torch.bfloat16)), name


@pytest.mark.parametrize(
    ("requested", "source", "expected"),
    [
        ("Source", "bfloat16", "bfloat16"),
        ("Source", "float32", "float32"),
        ("Source", "float16", "float32"),
        ("float32", "bfloat16", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        (None, "bfloat16", "bfloat16"),
    ],
)
def test_role_and_format_are_those_of_the_run_s_own_model(
    run: Path, tmp_path: Path, requested: str | None, source: str, expected: str
) -> None:
    store = CheckpointStore(str(tmp_path / "saved"))
    spec = dict(store_spec(run))
    spec["checkpoint"] = {**spec["checkpoint"], "modelFormat": requested}
    if requested is None:  # a checkpoint of an earlier release
        del spec["checkpoint"]["modelFormat"]
    models = {"actor": weights_of(1, run.parent), "critic": weights_of(2, run.parent, scalar=True)}
    write(store, 1, models, spec, policy="critic")
    folder = tmp_path / "source"
    write_tiny_llama(folder, 0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": source}))
    done = export(store.address, tmp_path / "out", "--source", str(folder))
    assert f"exporting critic of step 1 in {expected}" in done.stderr, done.output
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {getattr(torch, expected)}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == expected


def test_a_checkpoint_in_a_bucket_is_exported_by_its_address(run: Path, tmp_path: Path) -> None:
    with s3_bucket() as bucket:
        store = CheckpointStore(f"{bucket}/sort")
        models = {"actor": weights_of(3, run.parent)}
        metrics = {"evaluation/reward_mean": 0.5}
        address = write(store, 3, models, dict(store_spec(run)), metrics=metrics)
        requests: list[list[str]] = [[store.address], [address], [store.address, "--best"]]
        for number, (source, *options) in enumerate(requests):
            done = export(source, tmp_path / f"out-{number}", *options)
            assert done.exit_code == 0, done.output
            assert f"exporting actor of step 3 in float32, from {address}" in done.stderr
            found = load_file(tmp_path / f"out-{number}" / "model.safetensors")
            assert torch.equal(found["lm_head.weight"], models["actor"]["lm_head.weight"])


def store_spec(run: Path) -> Any:
    return CheckpointStore(str(run / "checkpoints")).read(1).record.spec


def test_what_is_there_is_replaced_only_by_force(run: Path, tmp_path: Path) -> None:
    out = full_folder(tmp_path / "out")
    others = [full_folder(tmp_path / name) for name in ("out.old", "out.new", ".out.rlhf")]
    refused = export(run, out)
    assert refused.exit_code == 2 and "give --force" in refused.stderr
    assert (out / "old").exists()
    done = export(run, out, "--force")
    assert done.exit_code == 0, done.output
    assert not (out / "old").exists() and (out / "config.json").is_file()
    assert out.stat().st_mode == others[0].stat().st_mode, "with the rights of any new folder"
    assert sorted(tmp_path.iterdir()) == sorted([out, *others]), "other folders are left alone"
    assert all((other / "old").exists() for other in others)


def full_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "old").touch()
    return folder


def test_an_export_that_was_killed_while_it_replaced_a_folder_loses_nothing(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    full_folder(tmp_path / ".out.rlhf-new-1")
    full_folder(tmp_path / ".out.rlhf-replaced-1")
    refused = export(run, out)
    assert refused.exit_code == 2 and "give --force" in refused.stderr
    assert list(tmp_path.iterdir()) == [out] and (out / "old").exists()
    full_folder(tmp_path / ".out.rlhf-replaced-2")
    assert export(run, out, "--force").exit_code == 0
    assert list(tmp_path.iterdir()) == [out] and not (out / "old").exists()


def test_a_model_that_is_on_another_machine_is_asked_for(run: Path, tmp_path: Path) -> None:
    spec = dict(store_spec(run))
    spec["models"] = {**spec["models"], "actor": {"source": {"path": "/nowhere/llama"}}}
    store = CheckpointStore(str(tmp_path / "saved"))
    address = write(store, 1, {"actor": weights_of(1, run.parent)}, spec)
    done = export(address, tmp_path / "out")
    assert done.exit_code == 2 and "CannotExport" in done.stderr, done.output
    assert "/nowhere/llama" in done.stderr and "with --source" in done.stderr


def test_two_exports_to_one_place_do_not_meet(run: Path, tmp_path: Path) -> None:
    with staging_folder(tmp_path / "out") as folder:
        other = export(run, tmp_path / "out")
        assert other.exit_code == 2 and "another export writes there" in other.stderr
        (folder / "config.json").touch()
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["config.json"]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_place_that_is_a_mount_is_filled(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if force:
        (out / "old").touch()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == out)
    done = export(run, out, *force)
    assert done.exit_code == 0, done.output
    names = {entry.name for entry in out.iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    assert not names & {"old", ".lock"} and not any("rlhf-new" in name for name in names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_replaced_is_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = full_folder(tmp_path / "out")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if "rlhf-new" in self.name:
            raise OSError(16, "Device or resource busy")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    done = export(run, out, "--force")
    assert done.exit_code == 4 and "Device or resource busy" in done.stderr
    assert list(tmp_path.iterdir()) == [out] and (out / "old").exists()


def test_an_interruption_is_none_of_the_storage(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FsspecReader, "read_data", interrupted)
    done = export(run, tmp_path / "out")
    assert done.exit_code == 130 and "StorageFailed" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlhf_runtime.engines.model_files.save_file", full)
    done = export(run, tmp_path / "out")
    assert done.exit_code == 4 and "ModelNotSaved" in done.stderr and "No space" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_a_run_deletes_meanwhile_is_told(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_first(address: str) -> dict[str, SavedModel]:
        shutil.rmtree(address)
        return saved_models(address)

    monkeypatch.setattr("rlhf_cli.export.saved_models", delete_first)
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    done = export(copied, tmp_path / "out")
    assert done.exit_code == 2 and not (tmp_path / "out").exists()
    assert "step 2 was deleted during the export" in done.stderr and "command again" in done.stderr


def test_a_damaged_checkpoint_is_named_with_its_file_and_the_one_before_is_taken(
    run: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    file = copied / "checkpoints" / "step-00000002" / "local" / "__0_0.distcp"
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    named = export(file.parents[1], tmp_path / "out")
    assert named.exit_code == 2 and "CannotExport" in named.stderr
    assert "local/__0_0.distcp has other contents than were written" in named.stderr
    assert "there are also steps 1" in named.stderr and not (tmp_path / "out").exists()
    newest = export(copied, tmp_path / "out")
    assert newest.exit_code == 0, newest.output
    assert "step 2 cannot be used: local/__0_0.distcp" in newest.stderr
    assert "exporting actor of step 1" in newest.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("{run}", "{out}", "--role", "nobody"), "allowed actor, critic"),
        (("{run}-none", "{out}"), "nothing there"),
        (("{out}.file", "{out}"), "a file"),
        (("{run}/checkpoints/step-00000007", "{out}"), "checkpoint.json is missing"),
        (("{tmp}", "{out}"), "no complete checkpoint"),
        (("nowhere://x", "{out}"), "Protocol not known: nowhere"),
        (("{run}", "{out}.file"), "the output is a file"),
        (("{run}", "s3://bucket/model"), "models are exported to this machine"),
        (("{run}", "{run}", "--force"), "in one another"),
        (("{run}", "{run}/checkpoints/step-00000002/model"), "in one another"),
        (("{run}", "{out}.file/below"), "cannot be put there"),
        (("{run}", "{out}", "--source", "{tmp}"), "without config.json"),
        (("{run}", "{out}", "--source", "{tmp}/other"), "are not those of the model"),
        (("{run}", "{out}", "--source", "{tmp}/broken"), "not valid JSON: got"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_what_can(
    run: Path, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "out.file").touch()
    LlamaConfig(hidden_size=64, num_hidden_layers=1).save_pretrained(tmp_path / "other")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    given = [word.format(run=run, out=tmp_path / "out", tmp=tmp_path) for word in words]
    done = export(*given)
    reasons = ("CannotExport: ", "UnsupportedModel: ", "ModelIncomplete: ")
    assert done.exit_code in (2, 3) and done.stderr.splitlines()[-1].startswith(reasons)
    assert says in done.stderr, done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_files_name_otherwise_is_refused(tmp_path: Path) -> None:
    config = MixtralConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=9, num_local_experts=2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path / "source")
    store = CheckpointStore(str(tmp_path / "saved"))
    weights = {name: each.detach() for name, each in model.named_parameters()}
    address = write(store, 1, {"actor": weights}, {})
    done = export(address, tmp_path / "out", "--source", tmp_path / "source")
    assert done.exit_code == 3 and "UnsupportedModel" in done.stderr, done.output
    assert "have other names in files" in done.stderr and not (tmp_path / "out").exists()
    unknown = export(address, tmp_path / "out")
    assert unknown.exit_code == 2 and "give the folder of that model with --source" in (
        unknown.stderr
    )
