"""Watches by kopf: one kopf operator per namespace, which lists and watches, and writes nothing.

kopf assumes that the process is its own: it handles signals, and cancels tasks that it has not
created. So each watch has its own thread and event loop, and all its tasks end with that.
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
from rlhf_kube.client import PAGE_SIZE
from rlhf_kube.kinds import Kind

log = logging.getLogger(__name__)
WATCH_SECONDS = 60
"""Duration of one watch request; API servers accept whole seconds only."""
BACKOFF_SECONDS = (1, 1, 2, 3, 5, 5, 5, 5)
"""Between two tries while an API server is unreachable or refuses."""
IDLE_SECONDS = 0.1
"""Time without events after which kopf's worker of an object ends, and frees the last event."""
END_SECONDS = 3.0
"""Time limit for each of three groups of kopf's tasks to end."""
LINGER_SECONDS = 0.1
"""Closed connections end in the next turns of the loop."""
CHILDREN = (Kind.CLUSTER, Kind.POD)
"""Kinds that are selected by the job label: other pods of the cluster are never sent."""

Event = kopf.RawEvent
Handler = Callable[[Event], Awaitable[None]]


@dataclass
class Watch:
    """A watch of some kinds in one namespace, or in all. It runs once."""

    namespace: str | None
    """None: all."""
    handlers: Mapping[Kind, Handler]
    """Called in the event loop that called `run`."""
    in_cluster: bool
    """True if this process is a pod with a service account's token."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set in kopf's loop."""
    _loop: asyncio.AbstractEventLoop | None = None
    """kopf's loop. None: not started."""
    _tasks: Collection[asyncio.Task[Any]] = ()
    """Root tasks of kopf's operator; they run until its end."""

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Run until `end` is called.

        Args:
            on_ready: called when kopf has started; it is about to list.

        Raises:
            Exception: an error of the API server or of kopf.
        """
        loop = self._loop = asyncio.new_event_loop()
        loop.set_exception_handler(_log)
        ended: Future[None] = Future()
        # Running futures cannot be cancelled: the thread ends by `end` only.
        ended.set_running_or_notify_cancel()
        operating = self._operate(asyncio.get_running_loop(), on_ready)
        name = f"watch of {self.namespace or 'all namespaces'}"
        threading.Thread(
            target=self._run_in_thread, args=(loop, operating, ended), name=name, daemon=True
        ).start()
        await asyncio.wrap_future(ended)

    def end(self) -> None:
        """Ask it to end. Call it in the thread that called `run`."""
        if self._loop is None:
            self._stop.set()
        else:
            with suppress(RuntimeError):  # its loop has just been closed
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
        except Exception as error:  # remaining resources end with the process
            log.warning("a watch has not ended cleanly: %s", error)
        finally:
            ended.set_result(None) if failure is None else ended.set_exception(failure)

    async def _operate(
        self, caller_loop: asyncio.AbstractEventLoop, on_ready: Callable[[], None]
    ) -> None:
        ready = asyncio.Event()
        self._tasks = await kopf.spawn_tasks(
            registry=self._registry(caller_loop),
            settings=_settings(),
            standalone=True,
            clusterwide=self.namespace is None,
            namespaces=() if self.namespace is None else (self.namespace,),
            ready_flag=ready,
            stop_flag=self._stop,
        )
        reporting = asyncio.create_task(_report_ready(ready, caller_loop, on_ready))
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        reporting.cancel()
        for task in done:
            # A root task never ends by itself: without an error, something else has ended it.
            if task.cancelled() or not (task.exception() or self._stop.is_set()):
                raise RuntimeError(f"kopf's {task.get_name()} has ended")
            task.result()

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        """End watches and their workers, then kopf's root tasks, then all other tasks."""
        # Not by kopf's own shutdown: it waits without limit for watches that wait for a login,
        # which nobody performs any more. Root tasks come second, as one of them closes what the
        # watches use; schedulers come last, as their watches wait for them while they end.
        roots = set(self._tasks)
        _cancel([t for t in asyncio.all_tasks(loop) - roots if not _is_scheduler(t)], loop)
        _cancel(roots, loop)
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
                _forwarder(handler, caller_loop)
            )
        return registry


def _forwarder(handler: Handler, caller_loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """Return a handler for kopf that calls ours in the other loop."""

    async def call(event: Event) -> None:
        await handler(event)

    async def forward(event: Event, **_: Any) -> None:
        # Waits for the call, so that events of an object stay in order.
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
    # Only for debugging: the error that ended the watch is raised by `run`.
    log.debug("%s", context["message"], exc_info=context.get("exception"))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # the operator writes its own events, few and readable
    settings.scanning.disabled = True  # needs no right to watch kinds and namespaces
    settings.process.ultimate_exiting_timeout = None  # it would kill this process
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = BACKOFF_SECONDS
    for kind in CHILDREN:
        # The `labels` of a handler only filter events that the API server has sent.
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = JOB_LABEL
    return settings
