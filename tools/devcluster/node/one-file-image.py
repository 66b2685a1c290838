#!/usr/bin/env python3
"""Writes an image with one static program, as an archive on standard output.

one-file-image.py PROGRAM NAME | ctr images import -
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file to an archive."""
    # The size goes first: a pipe cannot be rewound to write it later.
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def main(program: str, name: str) -> None:
    """Write the archive; the image's entry point is the program."""
    file = Path(program)
    # In memory: the configuration needs the layer's digest.
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        add(archive, file.name, file.read_bytes(), mode=0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{file.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        add(archive, "config.json", json.dumps(config).encode())
        add(archive, "layer.tar", layer.getvalue())
        add(archive, "manifest.json", json.dumps(manifest).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
