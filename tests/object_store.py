"""A real server of S3's protocol on this machine, for tests of object stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem


@contextmanager
def s3_bucket() -> Iterator[str]:
    """Run a server with an empty bucket; yields its address and sets the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            boto3.client("s3").create_bucket(Bucket="checkpoints")
            yield "s3://checkpoints"
    finally:
        S3FileSystem.clear_instance_cache()  # kept by arguments alone, with this server's port
        server.stop()
