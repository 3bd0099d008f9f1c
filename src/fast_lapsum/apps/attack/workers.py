"""A function over many tasks in several processes; one that dies costs its task, not the run."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

import torch

_Task = TypeVar("_Task")
Make = Callable[[Any], Any]

#: A worker's messages: it has started, an answer, its last answer, what it raised.
_READY, _ANSWER, _LAST, _RAISED = range(4)


class WorkerError(Exception):
    """Worker processes do not start, or one of them raised (as the cause of what is raised)."""


class Died(NamedTuple):
    """In place of the answer of a worker that ended before it gave one."""

    reason: str


class Pool:
    """At most ``count`` processes, started when there is something to do, ended by ``with``.

    Args:
        setup: makes, in each process, the function that is asked; it has to be picklable, which the
            function does not. A worker whose function has a true ``spoiled`` after an answer is
            replaced.
        count: of processes.
        threads: of torch in each of them.
    """

    def __init__(self, setup: Callable[[], Make], count: int, threads: int) -> None:
        self._setup = setup
        self._count = count
        self._threads = threads
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.ended()
        self._workers.clear()

    def run(
        self, tasks: Iterable[_Task], idle: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[_Task, Any]]:
        """Tasks with their answers as they come; ``idle`` is called while none comes.

        What a worker raises is raised here.
        """
        waiting = deque(tasks)
        while waiting or any(worker.busy for worker in self._workers):
            self._hand_out(waiting)
            heard = wait([worker.connection for worker in self._workers], timeout=1.0)
            if not heard:
                idle()
            for worker in [one for one in self._workers if one.connection in heard]:
                answers = self._hear(worker)
                self._hand_out(waiting)  # first, so that no worker waits for what the caller does
                yield from answers

    def _hand_out(self, waiting: deque[_Task]) -> None:
        while waiting:
            free = next((worker for worker in self._workers if not worker.busy), None)
            if free is None:
                if len(self._workers) == self._count:
                    return
                free = self._start()
            free.give(waiting.popleft())

    def _hear(self, worker: _Worker) -> list[tuple[Any, Any]]:
        """The task and the answer that came, if one did."""
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):  # OSError: in the middle of a message
            self._workers.remove(worker)
            ending = _ending(worker.ended())
            if not worker.ready:
                raise WorkerError(f"a worker process did not start: it {ending}") from None
            died = Died(f"the worker process {ending}")
            return [(worker.task, died)] if worker.busy else []
        if kind == _READY:
            worker.ready = True
            return []
        if kind == _RAISED:
            error, trace = content
            raise error from WorkerError(f"in a worker process:\n{trace}")
        worker.busy = False
        if kind == _LAST:
            self._workers.remove(worker)
            worker.process.kill()
            worker.ended()
        return [(worker.task, content)]

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=_serve, args=(there, self._setup, self._threads), daemon=True
        )
        worker = _Worker(process, here)
        with _undisturbed():
            process.start()
            self._workers.append(worker)
        there.close()  # so that the end of the worker is the end of the pipe
        return worker


class _Worker:
    """A process and what it was asked."""

    def __init__(self, process: BaseProcess, connection: Connection[Any, Any]) -> None:
        self.process = process
        self.connection = connection
        self.ready = False
        self.busy = False
        self.task: Any = None

    def give(self, task: Any) -> None:
        self.task, self.busy = task, True
        with suppress(OSError):  # dead: noticed when its answer is waited for
            self.connection.send(task)

    def ended(self) -> int | None:
        """Wait for the end, which is under way; the exit code."""
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        self.connection.close()
        return code


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait until this ends, and for ever in a process started here.

    Ctrl-C and ``kill`` of the process group are for the parent, which ends its workers.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", as systems do when memory runs out" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return f"ended with exit code {code}"


def _serve(connection: Connection[Any, Any], setup: Callable[[], Make], threads: int) -> None:
    """Answer until there is no more to do, or no parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if "fork" in multiprocessing.get_all_start_methods():
        # A killed worker leaves nothing behind: only locks of the other ways to start (tqdm makes
        # some) have names, which somebody would have to clean up.
        multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(threads)
    connection.send((_READY, None))
    try:
        make = setup()
        spoiled = False
        while not spoiled:
            answer = make(connection.recv())
            spoiled = getattr(make, "spoiled", False)
            connection.send((_LAST if spoiled else _ANSWER, answer))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        connection.send((_RAISED, (_picklable(error), traceback.format_exc())))


def _end_with_parent() -> None:
    """A row may take minutes, and nobody would take its result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class does when it is taken apart and put together
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
