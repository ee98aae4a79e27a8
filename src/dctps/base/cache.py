"""A cache of limited size for objects that are costly to make; the least recently used object is dropped first."""

import collections
import threading
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import torch


class Sized(Protocol):
    """An object that knows how many bytes it takes."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Cache:
    """A dictionary of at most `limit` bytes that several threads may use at once.

    The item that was asked for last stays even if it alone is larger than the limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: collections.OrderedDict[Hashable, Sized] = collections.OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the item under `key`, which `make` makes if it is not there."""
        with self._lock:
            if key not in self._items:
                with torch.inference_mode(False):  # tensors made in inference mode could not serve training later
                    self._items[key] = make()
                self._drop()
            self._items.move_to_end(key)
            return self._items[key]  # type: ignore[return-value]

    def _drop(self) -> None:
        """Drop the items that were not asked for the longest, until the others take no more than the limit."""
        while len(self._items) > 1 and sum(item.nbytes for item in self._items.values()) > self.limit:
            self._items.popitem(last=False)
