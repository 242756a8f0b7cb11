"""How long a piece of work takes, on a processor or on a GPU."""

import time
from collections.abc import Callable

import torch


def clock(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call: of all processors' time, or between two events on a GPU."""
    if device.type != "cuda":
        begin = time.process_time()
        run()
        return time.process_time() - begin
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3
