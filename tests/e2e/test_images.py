"""Built images: no file gives further rights, no compilers, and the pinned packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "images" / "check_content.py"
PODMAN = ROOT / "tools" / "devcluster" / "images" / "podman"
LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=20000:20000")


@pytest.mark.e2e
@pytest.mark.parametrize("image", ["rlhf-operator", "rlhf-runtime"])
def test_a_built_image_contains_what_it_should(image: str) -> None:
    listed = subprocess.run(
        [str(PODMAN), "images", "--format={{.Repository}}:{{.Tag}}", f"localhost/{image}"],
        capture_output=True,
        text=True,
        check=True,
    )
    reference = next(iter(listed.stdout.split()), None)
    assert reference is not None, f"{image} is not built: run `make cluster-images`"
    options = ("--rm", "--interactive", "--read-only", "--network=none", "--entrypoint=python")
    with SCRIPT.open() as script:
        done = subprocess.run(
            [str(PODMAN), "run", *options, *LIMITS, reference, "-"],
            stdin=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert done.returncode == 0, done.stdout
