"""Gloo worlds for tests: processes that start once and run one function after another.

Starting a process that imports torch costs seconds; a call to one that waits costs a millisecond.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

COLLECTIVE_TIMEOUT_S = 60.0
"""How long a collective of the default group waits for its peers."""
GRACE_S = 5.0
"""How long peers may take to answer once one rank has failed or died."""


class WorldError(AssertionError):
    """A function failed, died or hung on some rank; the message says which, and how."""


class Pool:
    """A world of `world_size` gloo processes.

    `run` calls a module-level function on every rank, `function(*args)`, and returns what each
    rank returned, in the order of ranks. Arguments and results are plain values: numbers, strings,
    frozen dataclasses; a comparison of tensors is made on the rank that has them. Inside, the
    default process group spans the world.

    Raises `WorldError` with the traceback of each rank that failed. After any failure the
    processes are replaced before the next call, since peers may wait in a collective for ever.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="world-")
        self._starts = 0

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0) -> list[Any]:
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args))
        answers = self._collect(timeout_s)
        faults = {rank: text for rank, (fine, text) in answers.items() if not fine}
        silent = sorted(set(range(self.world_size)) - set(answers))
        if faults or silent:
            self.close()
            parts = [f"rank {rank}: {text}" for rank, text in sorted(faults.items())]
            if silent:
                parts.append(f"no answer from ranks {silent} (limit {timeout_s:g} s)")
            raise WorldError("\n".join(parts))
        return [answers[rank][1] for rank in range(self.world_size)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        # A file serves one world only.
        self._starts += 1
        meeting = str(Path(self._folder.name) / str(self._starts))
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, self.world_size, meeting), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        answers = self._collect(COLLECTIVE_TIMEOUT_S)
        if len(answers) < self.world_size:
            self.close()
            raise WorldError(f"a world of {self.world_size} processes did not start: {answers}")

    def _collect(self, timeout_s: float) -> dict[int, tuple[bool, Any]]:
        """`(fine, result or traceback)` of each rank that answered in time."""
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + timeout_s
        waiting = dict(zip(self._pipes, range(self.world_size), strict=True))
        while waiting and (left := deadline - time.monotonic()) > 0:
            for pipe in wait(list(waiting), left):
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    answers[rank] = (False, "the process died")
                if not answers[rank][0]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return answers


def _serve(pipe: Connection, rank: int, world_size: int, meeting: str) -> None:
    """The life of one process: join the world, then answer calls until the pipe closes."""
    # One machine, whose own name need not resolve: gloo takes the loopback.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
    )
    pipe.send((True, None))
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            # Skips the teardown of gloo, which waits for peers that may be gone.
            os._exit(0)
        except Exception:
            # The function's module does not import here.
            pipe.send((False, traceback.format_exc()))
            continue
        try:
            answer = (True, function(*args))
        except Exception:
            answer = (False, traceback.format_exc())
        pipe.send(answer)
