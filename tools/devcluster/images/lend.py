#!/usr/bin/env python3
"""Give images of podman's store to the node's containerd without copying them.

lend.py PODMAN SOCKET IMAGE...

Both store a layer as a folder that overlayfs mounts. So podman's folders are mounted, read-only, in
place of containerd's, and the image is marked as unpacked: gigabytes take a second and no disk. The
mounts lie in the cluster's state folder and are removed with it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
UNPACKED = "containerd.io/gc.ref.snapshot.overlayfs"
"""Label of a configuration that names the topmost layer's snapshot."""
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class Layer:
    """A layer in podman's store."""

    diff: str
    """Digest of its files as an archive."""
    chain: str
    """Digest of this layer and all below it: containerd's name of the snapshot."""
    folder: Path


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def output_of(command: Sequence[str], stdin: bytes = b"") -> bytes:
    """Run a program; returns its stdout.

    Raises:
        SystemExit: the program failed; its stderr says why.
    """
    done = subprocess.run(command, input=stdin, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise SystemExit(f"error: exit code {done.returncode} of: {' '.join(command)}")
    return done.stdout


def layers_of(image: dict[str, Any]) -> Iterator[Layer]:
    """Yield layers, lowest first."""
    data = image["GraphDriver"]["Data"]
    # overlayfs lists the topmost layer first.
    folders = [*reversed(data.get("LowerDir", "").split(":")), data["UpperDir"]]
    chain = ""
    for diff, folder in zip(image["RootFS"]["Layers"], filter(None, folders), strict=True):
        chain = digest_of(f"{chain} {diff}".encode()) if chain else diff
        yield Layer(diff, chain, Path(folder))


def config_of(image: dict[str, Any]) -> bytes:
    """Configuration of an image, byte for byte."""
    # `podman inspect` formats it anew; the digest of the original is the image's id.
    digest = f"sha256:{image['Id']}"
    store = Path(image["GraphDriver"]["Data"]["UpperDir"]).parents[2]
    name = "=" + base64.b64encode(digest.encode()).decode()  # how podman's store names such files
    content: bytes = (store / "overlay-images" / image["Id"] / name).read_bytes()
    assert digest_of(content) == digest
    return content


def archive_of(image: dict[str, Any], name: str, layers: Sequence[Layer]) -> bytes:
    """Archive of an image that names its layers and contains none of them."""
    config = config_of(image)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, digest_of(config), len(config)),
            # Nobody reads the layers, so their size does not matter.
            "layers": [descriptor(LAYER, layer.diff, 1) for layer in layers],
        }
    ).encode()
    entry = descriptor(MANIFEST, digest_of(manifest), len(manifest))
    entry["annotations"] = {"io.containerd.image.name": name}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index}
    for blob in (config, manifest):
        files["blobs/" + digest_of(blob).replace(":", "/")] = blob
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}


@dataclass(frozen=True)
class Containerd:
    """The node's containerd, by its command line."""

    socket: str

    def __call__(self, *words: str, stdin: bytes = b"") -> str:
        command = ["ctr", "--address", self.socket, "--namespace", "k8s.io", *words]
        return output_of(command, stdin).decode()

    def snapshots(self) -> set[str]:
        """Names of existing snapshots."""
        return {line.split()[0] for line in self("snapshots", "list").splitlines()[1:]}

    def add_snapshot(self, layer: Layer, parent: str) -> None:
        """Add a snapshot whose files are podman's."""
        key = f"lend-{layer.chain}"
        (mount,) = json.loads(
            self("snapshots", "prepare", "--mounts", key, *filter(None, [parent]))
        )
        options = dict(option.partition("=")[::2] for option in mount["Options"])
        folder = options.get("upperdir", mount["Source"])  # the lowest layer is a plain mount
        output_of(["mount", "--bind", str(layer.folder), folder])
        # A bind mount becomes read-only only by a second call.
        output_of(["mount", "-o", "remount,bind,ro", folder])
        self("snapshots", "commit", layer.chain, key)


def lend(podman: str, node: Containerd, name: str) -> None:
    """Give the node one image."""
    (image,) = json.loads(output_of([podman, "image", "inspect", name]))
    layers = list(layers_of(image))
    present, parent = node.snapshots(), ""
    for layer in layers:
        if layer.chain not in present:
            node.add_snapshot(layer, parent)
        parent = layer.chain
    node("images", "import", "--no-unpack", "-", stdin=archive_of(image, name, layers))
    # Without a label that refers to them, containerd's garbage collection removes the snapshots.
    node("content", "label", f"sha256:{image['Id']}", f"{UNPACKED}={parent}")


def main(podman: str, socket: str, *names: str) -> None:
    """Give the node all images."""
    for name in names:
        lend(podman, Containerd(socket), name)
        print(f"==> {name}: on the node")


if __name__ == "__main__":
    main(*sys.argv[1:])
