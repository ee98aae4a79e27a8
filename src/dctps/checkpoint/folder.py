"""An adapter as a folder, as hubs keep them: the file of the adapter, `config.json` and a model card with the report.

    dctps.save_pretrained(net, "my-adapter")
    dctps.from_pretrained("my-adapter", base)          # a folder, or "user/name" on the Hugging Face hub

A folder needs no network and no other package. A name on the hub is fetched by `huggingface_hub` (extra `hub`), and
`huggingface_hub.upload_folder` puts a folder there.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dctps.base.extras import needed
from dctps.base.files import write_atomically
from dctps.checkpoint.adapter_file import read_adapter, write_adapter
from dctps.checkpoint.adapter_state import AdapterState, state_of
from dctps.checkpoint.adapters import Adapter
from dctps.checkpoint.contents import CheckpointError
from dctps.nn.report import report
from dctps.nn.wrappers import unwrapped
from dctps.ops.functional import AUTO

FILE, CONFIG, CARD = "adapter.safetensors", "config.json", "README.md"


def save_pretrained(
    model: nn.Module, folder: str | os.PathLike[str], *, base: str | None = None, dtype: torch.dtype | None = None
) -> None:
    """Write what fine-tuning has made of a network into a folder, which is made if it is not there.

    base: the name of the network that was fine-tuned, for `config.json` and the model card; by default the name that a
        network of transformers knows.
    dtype: the type of the values in the file, as torch.float16; by default it is their own.
    """
    model = unwrapped(model)
    state, target = state_of(model), Path(folder)
    name = base or getattr(getattr(model, "config", None), "_name_or_path", "") or None
    target.mkdir(parents=True, exist_ok=True)
    write_adapter(state, target / FILE, dtype)
    config = json.dumps(_config(state, name, model), indent=2) + "\n"
    write_atomically(target / CONFIG, lambda file: file.write_text(config))
    card = _card(name, model)
    write_atomically(target / CARD, lambda file: file.write_text(card))


def from_pretrained(
    source: str | os.PathLike[str],
    model: nn.Module,
    *,
    strict: bool = True,
    backend: str = AUTO,
    revision: str | None = None,
) -> nn.Module:
    """Attach the adapter of a folder, or of a repository on the hub, to a network, in place, and return the network.

    strict: whether an adapter of other weights W0 is an error; else it is a warning.
    revision: the revision of a repository on the hub.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = _fetched(str(source), revision)
    _check_config(folder)
    try:
        return Adapter(((1.0, read_adapter(folder / FILE)),)).attach(model, strict=strict, backend=backend)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{folder} does not fit this network: {error}") from error


def _fetched(name: str, revision: str | None) -> Path:
    """Return the folder into which a repository of the hub was fetched."""
    parts = name.split("/")
    if len(parts) != 2 or not all(parts) or name.startswith((".", "~")):
        raise FileNotFoundError(f"there is no folder {name!r}, and it is not a name on the hub such as 'user/name'")
    hub = needed("huggingface_hub", "an adapter on the Hugging Face hub")
    return Path(hub.snapshot_download(name, revision=revision, allow_patterns=[FILE, CONFIG]))


def _check_config(folder: Path) -> None:
    """Raise CheckpointError unless a folder says that it holds an adapter of ours."""
    try:
        config = json.loads((folder / CONFIG).read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {CONFIG}; save_pretrained did not write it") from None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("library_name") != "dctps":
        raise CheckpointError(f"{folder / CONFIG} is not the configuration of an adapter of dctps")


def _config(state: AdapterState, name: str | None, model: nn.Module) -> dict[str, Any]:
    sizes = report(model).sizes
    return {
        "library_name": "dctps",
        "base_model_name_or_path": name,
        "base_fingerprint": state.base,
        "nnz": sum(support.nnz for support in state.supports.values()),
        "trainable_parameters": sizes.trainable,
        "parameters": sizes.parameters,
    }


def _card(name: str | None, model: nn.Module) -> str:
    """Return the model card: the facts that a hub reads, how to load the adapter, and the report."""
    base = [f"base_model: {json.dumps(name)}"] if name else []
    head = ["---", "library_name: dctps", *base, "tags:", "- dctps", "- sparse-fine-tuning", "---", ""]
    title = f"# A sparse adapter of {name}" if name else "# A sparse adapter"
    load = ["```python", 'dctps.from_pretrained("this folder", base)', "```"]
    table = ["```text", str(report(model)), "```", ""]
    return "\n".join([*head, title, "", "Every weight is W0 + S; S is sparse.", "", *load, "", *table])
