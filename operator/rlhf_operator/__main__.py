"""`python -m rlhf_operator`: read the settings, connect, run."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import uuid
from dataclasses import replace
from pathlib import Path

from rlhf_api.on_cluster import FIELD_MANAGER
from rlhf_kube.api_server import ApiServer
from rlhf_kube.client import KubeClient
from rlhf_kube.errors import KubeconfigUnusable, KubeError
from rlhf_kube.protocol import Caller, Kube
from rlhf_operator.apply.performer import Performer
from rlhf_operator.clients.cached_kube import CachedKube
from rlhf_operator.clients.discovery import require_job_kind
from rlhf_operator.clients.fair_semaphore import FairThreadPool
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.run_folders import RunFolders
from rlhf_operator.config import (
    BadConfig,
    HeadAccess,
    JobDefaults,
    LogFormat,
    OperatorConfig,
    load_config,
)
from rlhf_operator.decide.settings import Settings
from rlhf_operator.identity import Identity, key_in_cluster, key_in_file
from rlhf_operator.observe.observer import Observer
from rlhf_operator.observe.planner import Planner
from rlhf_operator.observe.ray_heads import RayHeads
from rlhf_operator.process.app import App
from rlhf_operator.process.head_connection import head_client, head_connector
from rlhf_operator.process.health import Health, LastAnswer, serve
from rlhf_operator.process.leadership import (
    GIVE_UP_SECONDS,
    LEASE_ANSWER_SECONDS,
    LEASE_SECONDS,
    Leader,
    Leadership,
)
from rlhf_operator.process.logs import set_up_logs
from rlhf_operator.process.metrics import Metrics
from rlhf_operator.process.reconciler import Reconciler
from rlhf_operator.process.stop import Stop

log = logging.getLogger(__name__)
CALLER = Caller(
    FIELD_MANAGER,
    "the operator",
    answer_seconds=30.0,
    # A write may begin GIVE_UP_SECONDS after the last renewal. It is not sent again when another
    # replica may hold the Lease.
    busy_seconds=LEASE_SECONDS - GIVE_UP_SECONDS,
)
OUTSIDE = "outside"
"""Release of an operator outside of the cluster, which has no Lease."""
DESCRIPTION = "Runs RLHFJobs on the RayClusters that it makes for them."
EXAMPLES = """examples:
  python -m rlhf_operator --config /etc/rlhf-operator/config.yaml
  python -m rlhf_operator --kubeconfig ~/.kube/config --key-file operator.key --config dev.yaml
"""


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 2 for bad settings, else 4 for errors."""
    options = _options(arguments)
    try:
        config = load_config(options.config)
        set_up_logs(config.log_level, config.log_format)
        return _run(config, options.kubeconfig, options.key_file)
    except (BadConfig, KubeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadConfig | KubeconfigUnusable) else 4


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "rlhf_operator",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, help="settings in YAML (default: all defaults)")
    parser.add_argument(
        "--kubeconfig", type=Path, help="the cluster to use (default: the one this pod is in)"
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        help="file with the key for clusters' tokens, outside of a cluster",
    )
    return parser.parse_args(arguments)


def _run_folders(defaults: JobDefaults) -> RunFolders:
    names = defaults.namespaces
    return RunFolders(
        defaults.storage, {name: defaults.for_namespace(name).storage for name in names}
    )


def _settings(config: OperatorConfig) -> Settings:
    bounds = config.bounds
    return Settings(
        poll_seconds=config.poll_seconds,
        lost_pod_seconds=bounds.lost_node_seconds,
        dead_head_seconds=bounds.dead_head_seconds,
        frozen_report_seconds=bounds.frozen_report_seconds,
        partial_cluster_seconds=bounds.room_seconds,
    )


def _run(config: OperatorConfig, kubeconfig: Path | None, key_file: Path | None) -> int:
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(kubeconfig.absolute())  # kopf reads only this
    namespace = config.operator_namespace or os.environ.get("POD_NAMESPACE")
    answers, metrics = LastAnswer(), Metrics()
    server = _api_server(kubeconfig, config.reconcile_workers)
    kube = KubeClient(server, CALLER, on_request=metrics.count_request, on_answer=answers.record)
    if not config.namespaces:  # a lost namespace is reported by its own watch
        require_job_kind(kube, None)
    key = _key(kube, config, namespace, key_file)
    release = f"{namespace}/{config.lease_name}" if key_file is None else OUTSIDE
    leader = None
    if namespace is not None and key_file is None:
        leader = Leader(_leadership(kubeconfig, namespace, config.lease_name))
    planner = Planner(config.planner_processes)
    identity = Identity(key, release)
    cached = CachedKube(kube, _run_folders(config.job_defaults))
    observer = Observer(cached, identity, planner, config.job_defaults, config.pod_policy)
    threads = FairThreadPool(config.reconcile_workers)
    client = head_client(config, lambda: server.access)
    reconciler = Reconciler(
        cached,
        observer,
        RayHeads(identity, head_connector(config, lambda: server.access, client)),
        Performer(
            cached,
            identity,
            namespace,
            config.head_access is not HeadAccess.DIRECT,
            config.job_log_format is LogFormat.JSON,
        ),
        metrics,
        threads,
        _settings(config),
        (lambda: True) if leader is None else leader.may_act,
    )
    app = App(config, cached, reconciler, in_cluster=kubeconfig is None)
    metrics.set_sources(lambda: len(app.queue) + len(threads), lambda: answers.age_seconds)
    # A replica on standby is ready: else a rolling update would wait for it for ever.
    health = Health(
        lambda: answers.age_seconds,
        lambda: app.is_started or app.is_standby,
        lambda: reconciler.definition_problem,
    )
    # In a thread of its own, so that it answers while the event loop is busy.
    stop_serving = serve(config.port, metrics.registry, health)
    try:
        asyncio.run(_run_and_close(app, leader, client, threads))
    finally:
        stop_serving()
        threads.close()
        planner.close()
        kube.close()
    return 0


def _api_server(kubeconfig: Path | None, num_connections: int) -> ApiServer:
    # One connection per thread: more would never be used at the same time.
    if kubeconfig is None:
        return ApiServer.in_cluster(CALLER.name, num_connections)
    return ApiServer.from_kubeconfig((kubeconfig,), None, CALLER.name, num_connections)


def _leadership(kubeconfig: Path | None, namespace: str, name: str) -> Leadership:
    """Return this process's view of the Lease, with a connection of its own."""
    # It competes for the Lease at its own interval, so that no request is repeated.
    caller = replace(CALLER, answer_seconds=LEASE_ANSWER_SECONDS, busy_seconds=0.0)
    kube = KubeClient(_api_server(kubeconfig, 1), caller)
    pod = os.environ.get("POD_UID", "")
    host = f"{socket.gethostname()}-{pod}" if pod else socket.gethostname()
    identity = f"{host}-{uuid.uuid4().hex[:8]}"
    return Leadership(kube, namespace, name, identity, pod=host if pod else "")


def _key(kube: Kube, config: OperatorConfig, namespace: str | None, file: Path | None) -> bytes:
    if file is not None:
        return key_in_file(file)
    if namespace is None:
        raise BadConfig(
            "the operator's own namespace is unknown: set POD_NAMESPACE or operatorNamespace, or "
            "outside of a cluster --key-file"
        )
    return key_in_cluster(kube, namespace, config.key_secret.name)


async def _run_and_close(
    app: App, leader: Leader | None, client: HttpClient, threads: FairThreadPool
) -> None:
    try:
        await _run_or_stand_by(app, leader, threads)
    finally:
        await client.close()


async def _run_or_stand_by(app: App, leader: Leader | None, threads: FairThreadPool) -> None:
    """Run from the moment on when this replica leads for the first time."""
    stop = Stop()
    stop.handle_signals()
    if leader is None:
        await app.run(stop)
        return
    loop = asyncio.get_running_loop()

    def on_change(leads: bool) -> None:
        loop.call_soon_threadsafe(app.set_leading, leads)

    app.set_leading(False)
    leader.start(on_change)
    try:
        await app.stand_by(stop)
        if not stop.is_set():
            await app.run(stop)
    finally:
        await asyncio.to_thread(threads.close)  # requests in progress end before others act
        try:
            await asyncio.to_thread(leader.close)
        except KubeError as error:
            log.warning("the Lease cannot be released: %s", error)


if __name__ == "__main__":
    sys.exit(main())
