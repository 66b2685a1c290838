"""images/build.sh: what it asks the builder for, what it lends it, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BUILDER = """#!/usr/bin/env bash
# A stand-in for the program that builds: notes its arguments, and the files that it is lent.
set -euo pipefail
cd "$(dirname "$0")"
[[ $1 == build ]] || { echo "podman version 4"; exit; }
printf '%s\\n' "$*" >>asked
for word in "$@"; do
  [[ $word != id=*,src=* ]] || { echo "$word"; cat "${word#*src=}"; } >>lent
done
[[ ! -f broken ]] || { echo "no space left on device" >&2; exit 125; }
"""


@pytest.fixture
def builder(tmp_path: Path) -> Path:
    """A program that builds nothing and writes beside itself what it was asked for."""
    program = tmp_path / "builder" / "podman"
    program.parent.mkdir()
    program.write_text(BUILDER)
    program.chmod(0o755)
    return program


def build(
    builder: Path | str, *images: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A run of the script with this builder."""
    return subprocess.run(
        [str(ROOT / "images" / "build.sh"), *images],
        env={**os.environ, "CONTAINER_TOOL": str(builder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_both_images_are_built_from_the_named_base(builder: Path) -> None:
    done = build(builder, BASE="mirror/python:3.11", REPOSITORY="registry.example/team")
    assert done.returncode == 0, done.stdout
    operator, runtime = (builder.parent / "asked").read_text().splitlines()
    assert "--file images/operator/Dockerfile" in operator
    assert f"--tag registry.example/team/rlhf-operator:{VERSION} ." in operator
    assert "--file images/runtime/Dockerfile" in runtime
    assert f"--tag registry.example/team/rlhf-runtime:{VERSION}-cpu" in runtime
    assert "--build-arg VARIANT=cpu" in runtime
    for asked in (operator, runtime):
        assert "--build-arg BASE=mirror/python:3.11" in asked


def test_one_file_serves_gpus_too(builder: Path) -> None:
    assert build(builder, "runtime-gpu").returncode == 0
    asked = (builder.parent / "asked").read_text()
    assert f"rlhf-runtime:{VERSION}-gpu" in asked and "--build-arg VARIANT=gpu" in asked


def test_no_image_says_that_it_may_see_gpus() -> None:
    for name in ("operator", "runtime"):
        words = (ROOT / "images" / name / "Dockerfile").read_text()
        assert "NVIDIA_VISIBLE_DEVICES" not in words, name


def test_settings_are_lent_and_are_no_arguments(builder: Path, tmp_path: Path) -> None:
    certificates = tmp_path / "ca.pem"
    certificates.write_text("a certificate")
    index = "https://user:password@index.example/simple"
    done = build(builder, "operator", PIP_INDEX_URL=index, SSL_CERT_FILE=str(certificates))
    assert done.returncode == 0
    lent = (builder.parent / "lent").read_text()
    assert f"index-url = {index}" in lent and f'index-url = "{index}"' in lent
    assert "a certificate" in lent
    assert "password" not in (builder.parent / "asked").read_text() + done.stdout


def test_packages_that_uv_has_are_lent_to_podman(builder: Path, tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    build(builder, "operator", UV_CACHE_DIR=str(tmp_path / "uv"))
    assert f"--volume {tmp_path}/uv:/run/uv-cache:O" in (builder.parent / "asked").read_text()


def test_without_a_builder_it_says_what_to_install() -> None:
    done = build("no-such-podman")
    assert done.returncode == 4
    assert "there is no no-such-podman" in done.stdout and "apt-get install podman" in done.stdout


def test_an_unknown_image_is_named_before_anything_is_built(builder: Path) -> None:
    done = build(builder, "operator", "runtime-tpu")
    assert done.returncode == 2
    assert "no such image: runtime-tpu; allowed: operator, runtime, runtime-gpu" in done.stdout
    assert not (builder.parent / "asked").exists()


def test_a_failed_build_fails(builder: Path) -> None:
    (builder.parent / "broken").touch()
    done = build(builder, "operator", "runtime")
    assert done.returncode == 4
    assert "no space left on device" in done.stdout
    assert f"rlhf-operator:{VERSION} could not be built" in done.stdout
    assert len((builder.parent / "asked").read_text().splitlines()) == 1
