"""Things that are costly to make and shared: kept while they fit into a number of bytes, the least used go first."""

import collections
import threading
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import torch


class Sized(Protocol):
    """Anything that knows its bytes."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Cache:
    """A dictionary of at most `limit` bytes, safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: collections.OrderedDict[Hashable, Sized] = collections.OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The thing under `key`, made now if it is not there."""
        with self._lock:
            if key not in self._items:
                with torch.inference_mode(False):  # it may serve training later
                    self._items[key] = make()
            self._items.move_to_end(key)
            thing = self._items[key]
            while len(self._items) > 1 and sum(item.nbytes for item in self._items.values()) > self.limit:
                self._items.popitem(last=False)
            return thing  # type: ignore[return-value]
