"""A worker process seen from outside: started, asked, waited for, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from .experiment import Case, Settings
from .worker import says_out_of_memory

#: For importing torch and starting CUDA on a slow or busy machine.
START_SECONDS = 300.0
#: What the first case of a worker may take beyond its limit: first calls load and compile kernels.
FIRST_CASE_SECONDS = {"cpu": 15.0, "cuda": 60.0}

#: SIGKILL, which Windows has no name for.
KILLED = 9


class WorkerError(Exception):
    """The worker did not start; the message has the last it said."""


class WorkerProcess:
    """One worker for one experiment; starts when it is first asked, and again after it ended."""

    def __init__(self, module: str, settings: Settings) -> None:
        self.remark = ""
        self._module = module
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self._grace = 0.0
        self._last_words = ""

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def measure(self, case: Case) -> dict[str, Any]:
        """The row of a case without its key, whatever becomes of the worker."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        self._send(case._asdict())
        seconds = self._settings.seconds
        try:
            grace = max(self._grace, case.patience)
            answer = self._answers.get(timeout=seconds + grace)
        except Empty:
            self.stop()
            return {"status": "timeout", "reason": f"more than {seconds:g} s"}
        self._grace = 0.0
        if answer is None:
            return self._row_of_the_dead()
        row: dict[str, Any] = json.loads(answer)
        if slowest(row.get("values")) > seconds:  # the first case of a worker has more time
            return {"status": "timeout", "reason": f"a call takes more than {seconds:g} s"}
        if row["status"] == "error" and self._settings.device != "cpu":
            self.stop()  # after some CUDA errors every later call fails as well
        return row

    def stop(self) -> int:
        """End the worker with whatever it started itself, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            with suppress(ProcessLookupError):
                if sys.platform == "win32":
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self._last_words = lines[-1].strip() if lines else ""
        self._log.close()
        return code

    def _start(self) -> None:
        self.stop()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
        self._answers = SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # Ctrl-C is for the parent, which decides
        )
        Thread(target=_pass_on, args=(self._process, self._answers), daemon=True).start()
        self._send({"module": self._module, "settings": self._settings._asdict()})
        try:
            answer = self._answers.get(timeout=START_SECONDS)
        except Empty:
            self.stop()
            raise WorkerError(f"the worker did not start within {START_SECONDS:g} s") from None
        if answer is None:
            self.stop()
            raise WorkerError(f"the worker did not start: {self._last_words or 'no message'}")
        self.remark = json.loads(answer)["remark"]
        self._grace = FIRST_CASE_SECONDS[self._settings.device.partition(":")[0]]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a dead worker is noticed when it does not answer
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _row_of_the_dead(self) -> dict[str, Any]:
        assert self._process is not None
        self._process.wait()  # its output has ended: so will it, by itself
        code = self.stop()
        if code == -KILLED:
            reason = "the process was killed, as systems do when memory runs out"
            return {"status": "oom", "reason": reason}
        if code < 0:
            ending = f"the process died of {signal.Signals(-code).name}"
        else:
            ending = f"the process ended with exit code {code}"
        status = "oom" if says_out_of_memory(self._last_words) else "error"
        words = f": {self._last_words}" if self._last_words else ""
        return {"status": status, "reason": ending + words}


def slowest(values: Any) -> float:
    """The longest median time among a row's values, 0 where there is none.

    >>> slowest({"mass": 3.0, "seconds": {"p20": 1.0, "p50": 2.0, "p80": 4.0}})
    2.0
    """
    if not isinstance(values, dict):
        return 0.0
    here = values.get("p50")
    return max(
        [here if isinstance(here, (int, float)) else 0.0, *(slowest(x) for x in values.values())]
    )


def _pass_on(process: subprocess.Popen[str], answers: SimpleQueue[str | None]) -> None:
    """Lines of the worker, then None for its end; a queue can be waited for with a limit."""
    assert process.stdout is not None
    with suppress(ValueError):  # closed meanwhile
        for line in process.stdout:
            answers.put(line)
    answers.put(None)
