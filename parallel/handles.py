"""Numbers that stand for objects.

The operators of `torch.library` take tensors and plain values only, and outlive any graph that
calls them: what else they need, a channel or a kernel, they find again by its number. The table
holds nothing alive.
"""

from itertools import count
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Handles(Generic[T]):
    """Objects of one kind by number."""

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[int, T] = WeakValueDictionary()
        self._numbers = count(1)

    def add(self, thing: T) -> int:
        number = next(self._numbers)
        self._objects[number] = thing
        return number

    def __getitem__(self, number: int) -> T:
        """Raises `RuntimeError` where the object is gone: a graph has outlived its model."""
        thing = self._objects.get(number)
        if thing is None:
            raise RuntimeError(
                "a backward pass or a compiled graph is run after the model it belongs to is gone"
            )
        return thing
