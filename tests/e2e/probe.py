"""What a rank finds in its pod: runs on a worker through Ray and prints it as JSON.

Sent to the cluster as text; it may use only what the image has.
"""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path
from typing import Any

import ray


def can_write(folder: str) -> bool:
    """Whether a file can be made there."""
    try:
        Path(folder, ".probe").touch()
    except OSError:
        return False
    Path(folder, ".probe").unlink()
    return True


def look() -> dict[str, Any]:
    """Where it runs, as whom, with which libraries, and what can be written."""
    import torch
    import vllm

    import rlhf_runtime

    Path("/rlhf/run/made-by-a-rank").write_text("hello")
    return {
        "pod": os.uname().nodename,
        "user": [os.getuid(), os.getgid(), getpass.getuser()],
        "writable": [f for f in ("/rlhf/run", "/rlhf/hub", "/tmp", "/dev/shm") if can_write(f)],
        "home_writable": can_write(str(Path.home())),
        "image_writable": can_write(str(Path(rlhf_runtime.__file__).parent)),
        "kubernetes_token": Path("/var/run/secrets/kubernetes.io").exists(),
        "libraries": [ray.__version__, torch.__version__, vllm.__version__],
    }


if __name__ == "__main__":
    ray.init()
    print("found", json.dumps(ray.get(ray.remote(num_cpus=1)(look).remote())))
