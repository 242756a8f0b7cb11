"""Work in a process of its own, and the processor time it takes."""

import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any


def apart(timeout_s: float, function: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """What a function gives in a process of its own, or why it gives nothing."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=context)
    try:
        return pool.submit(_said, function, *args).result(timeout_s)
    except TimeoutError:
        for process in list(pool._processes.values()):
            process.kill()
        return None, f"no result in {timeout_s:g} s"
    except BrokenProcessPool:
        return None, "its process died"
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _said(function: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    # A spawned process would spawn its workers too, which no user's does on Linux.
    multiprocessing.set_start_method("fork", force=True)
    try:
        return function(*args), ""
    except ModuleNotFoundError as error:
        return None, f"not installed: {error.name}"
    except Exception as error:
        return None, f"failed: {type(error).__name__}: {error}"[:200]


def cpu_s_used() -> float:
    """User and system time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
