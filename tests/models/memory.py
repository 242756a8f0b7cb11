"""The most bytes that tensors take at once, counted at every operation."""

import weakref
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class PeakMemory(TorchDispatchMode):
    """Counts storages that operations make inside the context, as long as each is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._now = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in tree_flatten(result)[0]:
            if isinstance(item, torch.Tensor):
                storage = item.untyped_storage()
                if storage not in self._known:
                    self._known.add(storage)
                    self._now += storage.nbytes()
                    weakref.finalize(storage, self._free, storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self._now)
        return result

    def _free(self, num_bytes: int) -> None:
        self._now -= num_bytes
