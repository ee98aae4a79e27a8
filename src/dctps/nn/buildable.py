"""Which weights of other layers than linear layers and convolutions can be built as alpha D + S, and making them so.

D is that of the weight as the layer stores it. A transposed convolution stores the weight of the convolution whose
adjoint it computes. A weight of several stacked matrices has a D for each: a block of one large D, as a third of the
rows of a DCT of three times the length, has singular values next to zero. Where D has random signs or rows, those of
the blocks differ; else the three projections of attention would begin as one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dctps.core.offsets import OffsetLike, TransformOffset
from dctps.core.support import Support
from dctps.nn.built_layer import PART, BuiltLayer, BuiltPart, attach_built, detach_built
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import FineTuned, weight_name
from dctps.nn.layer_kinds import LayerKind, kind_of
from dctps.nn.prunable import LAYERS, owners_of
from dctps.nn.replace import errors_name_layer


class Block(NamedTuple):
    """A matrix that can be built: the layer and the name of the weight that it is in, its rows there and its number."""

    layer: nn.Module
    kind: LayerKind
    weight: str
    name: str  # of its part; that of the weight if it is the whole weight
    number: int
    total: int  # of matrices in the weight

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *rest = self.layer.get_parameter(self.weight).shape
        return rows // self.total, *rest

    def entries(self) -> Tensor:
        """Return the part of the weight that this matrix is."""
        return self.layer.get_parameter(self.weight).detach().chunk(self.total)[self.number]


def buildable(model: nn.Module, *, frozen_too: bool = False) -> dict[str, Block]:
    """Return the matrices that can be built, by name (`fine_tuned.weight_name`), without those in `prunable`.

    frozen_too: whether those in frozen weights are among them.
    """
    owners = owners_of(model)
    found = {}
    for path, layer in model.named_modules():
        for block in _blocks(layer):
            weight = layer._parameters[block.weight]
            assert weight is not None
            if len(owners[id(weight)]) == 1 and _can_be_built(weight, frozen_too):
                found[weight_name(path, block.name)] = block
    return found


def _blocks(layer: nn.Module) -> Iterator[Block]:
    """Yield the matrices in the weights of a plain layer of a kind for which a transform makes sense."""
    if type(layer) in LAYERS or isinstance(layer, DpsLayer | FineTuned | BuiltLayer):
        return
    kind = kind_of(layer)
    if kind is None or kind.why_no_transform is not None:
        return
    for weight in kind.weights:
        if layer._parameters.get(weight) is not None:
            names = kind.blocks(layer, weight)
            yield from (Block(layer, kind, weight, name, i, len(names)) for i, name in enumerate(names))


def _can_be_built(weight: nn.Parameter, frozen_too: bool) -> bool:
    if nn.parameter.is_lazy(weight) or type(weight.data) is not Tensor or not weight.is_floating_point():
        return False
    return weight.dim() >= 2 and weight.numel() > 0 and (frozen_too or weight.requires_grad)


def block_offset(offset: OffsetLike, block: Block) -> OffsetLike:
    """Return the offset of a matrix: one of other signs and rows than those of the matrices before it in the weight."""
    recipe = TransformOffset.parse(offset) if isinstance(offset, str) and offset.lower() != "none" else offset
    if not block.number or not isinstance(recipe, TransformOffset):
        return offset
    is_random = recipe.signs != "none" or recipe.rows == "random"
    return dataclasses.replace(recipe, seed=recipe.seed + block.number) if is_random else recipe


def make_part(
    name: str, block: Block, support: Support, options: Mapping[str, object], device: torch.device
) -> BuiltPart:
    """Return the part that builds a matrix; without an offset it keeps the values that the matrix has at the support.

    device: where to make it if the layer is on the meta device.
    """
    weight = block.layer.get_parameter(block.weight)
    place = device if weight.is_meta else weight.device
    with errors_name_layer(name):
        part = BuiltPart(block.shape, support=support, device=place, dtype=weight.dtype, **options)  # type: ignore[arg-type]
    if part.offset is None and not weight.is_meta:
        part.values.data = block.entries().flatten()[support.positions.to(place).long()].clone()
    return part.requires_grad_(weight.requires_grad) if not weight.requires_grad else part


def check_whole(blocks: Mapping[str, Block], chosen: Mapping[str, object]) -> None:
    """Raise ValueError if of the matrices of a weight some are chosen and others are not."""
    weights = {(id(b.layer), b.weight) for name, b in blocks.items() if name in chosen}
    missing = [n for n, b in blocks.items() if (id(b.layer), b.weight) in weights and n not in chosen]
    if missing:
        raise ValueError(
            f"{missing[0]!r} is stored in one weight with others that have a support, so it needs one, too"
        )


def built_weights(blocks: Mapping[str, Block]) -> dict[int, set[str]]:
    """Return the names of the weights that these matrices are in, by the id of their layer."""
    weights: dict[int, set[str]] = {}
    for block in blocks.values():
        weights.setdefault(id(block.layer), set()).add(block.weight)
    return weights


def attach_blocks(blocks: Mapping[str, Block], parts: Mapping[str, BuiltPart]) -> Callable[[], None]:
    """Let layers read the parts, given by the names of the matrices; return a function that undoes it."""
    layers: dict[int, tuple[Block, dict[str, dict[str, BuiltPart]]]] = {}
    for name, part in parts.items():
        block = blocks[name]
        weights = layers.setdefault(id(block.layer), (block, {}))[1]
        weights.setdefault(block.weight, {})[block.name] = part
    old = [(b.layer, {key: b.layer.get_parameter(key) for key in weights}) for b, weights in layers.values()]
    for block, weights in layers.values():
        attach_built(block.layer, weights, block.kind.guarded)

    def undo() -> None:
        for layer, before in old:
            assert isinstance(layer, BuiltLayer)
            detach_built(layer, before)

    return undo


def attach_saved(
    model: nn.Module,
    saved: Mapping[str, tuple[Support, Mapping[str, object]]],
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> Callable[[], None]:
    """Let the plain layers of a network read weights as files name them; return a function that undoes it.

    saved: the support and the options of each sparse layer, by its path. Paths of other layers, and of parts that the
        network has, are passed over. Raise ValueError where the network has no layer for a part.
    """
    blocks, parts = buildable(model, frozen_too=True), {}
    there = {path for path, _ in model.named_modules()}
    for path, (support, options) in saved.items():
        owner, mark, key = f".{path}".rpartition(PART)
        if not mark or path in there:
            continue
        name = weight_name(owner[1:], key)
        if name not in blocks:
            raise ValueError(f"it has no layer that could read the weight {name!r}")
        if blocks[name].shape != support.shape:
            raise ValueError(f"its weight {name!r} has shape {blocks[name].shape}, the file {support.shape}")
        parts[name] = make_part(name, blocks[name], support, options, device)
    check_whole(blocks, parts)
    return attach_blocks(blocks, parts)
