"""Tensors and metadata as the bytes of a safetensors file, which are the same for the same content."""

import json
from collections.abc import Mapping

from safetensors.torch import save
from torch import Tensor


def serialized(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file, with the metadata in the order in which they are given.

    safetensors writes the metadata in an order that differs from call to call, so the header is written anew.
    """
    content = save(dict(tensors), dict(metadata))
    end = 8 + int.from_bytes(content[:8], "little")  # of the header, whose length is in the first 8 bytes
    header = json.loads(content[8:end]) | {"__metadata__": dict(metadata)}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    return b"".join([len(text).to_bytes(8, "little"), text, memoryview(content)[end:]])
