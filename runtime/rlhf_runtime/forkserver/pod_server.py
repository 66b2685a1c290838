"""Starts the fork server of a pod with the pod: it imports while Ray starts.

python -P -m rlhf_runtime.forkserver.pod_server CPU
"""

from __future__ import annotations

import os
import sys

from rlhf_api.on_cluster import FORK_SERVER_VARIABLE
from rlhf_api.spec.resources import Device
from rlhf_runtime.forkserver.client import start_server


def main() -> None:
    """Start it for the device in the arguments, under the name in the pod's environment."""
    start_server(os.environ[FORK_SERVER_VARIABLE], Device(sys.argv[1]))


if __name__ == "__main__":
    main()
