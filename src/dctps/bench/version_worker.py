"""A process that holds networks of one version of dctps and runs one step of them whenever it is asked.

It is started as a file, by the Python of an environment that may have another version of dctps than this file belongs
to. So it uses only public names, and loads `calls.py` from beside itself. It reads what to measure as one line of JSON,
answers with the names of its networks, and then answers each name with the milliseconds of one step.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dctps


def _calls() -> Any:
    spec = importlib.util.spec_from_file_location("calls", Path(__file__).with_name("calls.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(asked: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    module, _, function = asked["model"].partition(":")
    if function:
        sys.path.insert(0, "")
        found: nn.Module = getattr(importlib.import_module(module), function)()
        return found
    options = {} if asked["width"] is None else {"width": asked["width"]}
    return dctps.models.build(module, asked["classes"], in_channels=asked["input_shape"][0], **options)


def _steps(asked: dict[str, Any]) -> dict[str, Any]:
    """A step of the dense network and of ours by "contender/memory format"."""
    calls, shape = _calls(), (asked["batch"], *asked["input_shape"])
    x, target = torch.randn(shape), torch.randint(asked["classes"], shape[:1])
    formats = {"contiguous": torch.contiguous_format}
    if len(shape) == 4:
        formats["channels_last"] = torch.channels_last
    found = {}
    for contender in ("dense", "ours"):
        for name, memory_format in formats.items():
            model = _build(asked)
            if contender == "ours":
                model = dctps.sparsify(model, asked["density"], offset=asked["offset"], allocation="epl")
            model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
            images = x.contiguous(memory_format=memory_format)
            run = calls.inference(model, images) if asked["inference"] else calls.training_step(model, images, target)
            found[f"{contender}/{name}"] = run
    return found


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    torch.set_num_threads(asked["threads"])
    torch.set_flush_denormal(True)
    if asked["keep_memory"]:
        from dctps.base.machine import keep_memory

        keep_memory()
    steps = _steps(asked)
    print(json.dumps({"names": list(steps), "file": dctps.__file__}), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        steps[line.strip()]()
        print(1e3 * (time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main()
