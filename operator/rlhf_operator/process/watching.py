"""Watches by kopf: one of its operators for a namespace, which lists and watches, and writes
nothing.

kopf takes its process for its own: it takes the signals, and ends tasks that it has not begun. So
each has a thread and an event loop of its own, and what it began ends with that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import kopf

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.api_server import PAGE_SIZE
from rlhf_kube.kinds import Kind

log = logging.getLogger(__name__)
WATCH_SECONDS = 60
"""How long a watch is kept open; API servers take whole seconds only."""
BACKOFF_SECONDS = (1, 1, 2, 3, 5, 5, 5, 5)
"""From one try to the next while an API server is away, or refuses."""
IDLE_SECONDS = 0.1
"""After so long without news of an object kopf's worker of it ends, which holds the last one."""
END_SECONDS = 3.0
"""How long each of three kinds of kopf's tasks may take to end."""
LINGER_SECONDS = 0.1
"""Connections that were closed end in the loop's next turns."""
CHILDREN = (Kind.CLUSTER, Kind.POD)
"""Kinds of which only the jobs' own are asked for: a cluster's other pods are neither sent nor
kept."""

Event = kopf.RawEvent
Handler = Callable[[Event], Awaitable[None]]


@dataclass
class Watch:
    """Some kinds in a namespace, or in all. It can be run once."""

    namespace: str | None
    """None: all."""
    handlers: Mapping[Kind, Handler]
    """Called in the event loop in which it is run."""
    in_cluster: bool
    """Whether this process is a pod, with a service account's token."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Of kopf's loop."""
    _loop: asyncio.AbstractEventLoop | None = None
    """kopf's; None before it is run."""
    _parts: Collection[asyncio.Task[Any]] = ()
    """Of kopf's operator: each of them runs until its end."""

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Until it is told to end.

        Args:
            on_ready: called when kopf has begun; it is about to list.

        Raises:
            Exception: what the API server or kopf has.
        """
        loop = self._loop = asyncio.new_event_loop()
        loop.set_exception_handler(_log)
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()  # it is not to be cancelled, but told to end
        operating = self._operate(asyncio.get_running_loop(), on_ready)
        name = f"watch of {self.namespace or 'all namespaces'}"
        threading.Thread(
            target=self._run_in_thread, args=(loop, operating, ended), name=name, daemon=True
        ).start()
        await asyncio.wrap_future(ended)

    def end(self) -> None:
        """Tell it to end. In the thread that runs it."""
        if self._loop is None:
            self._stop.set()
        else:
            with suppress(RuntimeError):  # it has ended by itself, just now
                self._loop.call_soon_threadsafe(self._stop.set)

    def _run_in_thread(
        self,
        loop: asyncio.AbstractEventLoop,
        operating: Coroutine[Any, Any, None],
        ended: Future[None],
    ) -> None:
        failure: BaseException | None = None
        try:
            loop.run_until_complete(operating)
        except BaseException as error:
            failure = error
        try:
            self._close(loop)
        except Exception as error:  # what is left goes with the process
            log.warning("a watch has not ended in order: %s", error)
        finally:
            ended.set_result(None) if failure is None else ended.set_exception(failure)

    async def _operate(
        self, caller_loop: asyncio.AbstractEventLoop, on_ready: Callable[[], None]
    ) -> None:
        ready = asyncio.Event()
        self._parts = await kopf.spawn_tasks(
            registry=self._registry(caller_loop),
            settings=_settings(),
            standalone=True,
            clusterwide=self.namespace is None,
            namespaces=() if self.namespace is None else (self.namespace,),
            ready_flag=ready,
            stop_flag=self._stop,
        )
        reporting = asyncio.create_task(_report_ready(ready, caller_loop, on_ready))
        done, _ = await asyncio.wait(self._parts, return_when=asyncio.FIRST_COMPLETED)
        reporting.cancel()
        for task in done:
            if task.cancelled() or not (task.exception() or self._stop.is_set()):
                raise RuntimeError(f"kopf's {task.get_name()} has ended")
            task.result()

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        """End watches and their workers, then kopf's parts, one of which closes what the others
        use, then what is left.

        kopf's own end waits without a limit for watches that wait for a login, which nobody makes
        any more. Its schedulers come late: their watches wait for them while they end.
        """
        parts = set(self._parts)
        _cancel([t for t in asyncio.all_tasks(loop) - parts if not _is_scheduler(t)], loop)
        _cancel(parts, loop)
        _cancel(asyncio.all_tasks(loop), loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.sleep(LINGER_SECONDS))
        loop.close()

    def _registry(self, caller_loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        login = kopf.login_with_service_account if self.in_cluster else kopf.login_with_kubeconfig
        kopf.on.login(registry=registry)(login)
        for kind, handler in self.handlers.items():
            labels = {JOB_LABEL: kopf.PRESENT} if kind in CHILDREN else None
            kopf.on.event(kind.group, kind.version, kind.plural, labels=labels, registry=registry)(
                _forwarded(handler, caller_loop)
            )
        return registry


def _forwarded(handler: Handler, caller_loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """A handler for kopf that waits until the other loop has called ours: events stay in order."""

    async def call(event: Event) -> None:
        await handler(event)

    async def forward(event: Event, **_: Any) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(event), caller_loop))

    return forward


async def _report_ready(
    ready: asyncio.Event, caller_loop: asyncio.AbstractEventLoop, on_ready: Callable[[], None]
) -> None:
    await ready.wait()
    caller_loop.call_soon_threadsafe(on_ready)


def _is_scheduler(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__qualname__", "").startswith("Scheduler.")


def _cancel(tasks: Collection[asyncio.Task[Any]], loop: asyncio.AbstractEventLoop) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))


def _log(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What tasks of kopf's ended of besides what ended the watch."""
    log.debug("%s", context["message"], exc_info=context.get("exception"))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # the operator writes its own events, few and readable
    settings.scanning.disabled = True  # needs no right to watch kinds and namespaces
    settings.process.ultimate_exiting_timeout = None  # it would kill this whole process
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = BACKOFF_SECONDS
    for kind in CHILDREN:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = JOB_LABEL
    return settings
