"""Adapters: what fine-tuning has made of a network, to be attached to its base, taken away, added and subtracted.

    adapter = dctps.Adapter.of(net)             # or Adapter.read(path)
    dctps.detach(net)                           # net is what it was before it was fine-tuned
    adapter.attach(net)                         # and fine-tuned again, bit by bit
    (0.7 * one + 0.3 * other).attach(net)       # W0 + 0.7 S1 + 0.3 S2
    (one - other).attach(net)

An adapter is a weighted sum of states. A network has one adapter at a time, so to attach another one is to switch.
"""

import dataclasses
import os
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dctps.checkpoint.adapter_file import read_adapter
from dctps.checkpoint.adapter_state import AdapterState, base_weights, state_of
from dctps.core.fingerprint import fingerprint
from dctps.core.support import Support
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.finetune import attach, before, make_parts, saved_buffers, write_back
from dctps.nn.finetune import detach as take_away
from dctps.nn.sparse_part import SparsePart
from dctps.nn.tunable import tunable
from dctps.nn.wrappers import unwrapped
from dctps.ops.functional import AUTO, check_backend


def detach(model: nn.Module) -> "Adapter":
    """Make a fine-tuned network what it was before, bit by bit, in place; return what fine-tuning had made of it."""
    adapter = Adapter.of(model)
    take_away(unwrapped(model), restore=True)
    return adapter


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A weighted sum of states of a fine-tuned network."""

    terms: tuple[tuple[float, AdapterState], ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Adapter":
        """Return a copy of what fine-tuning has made of a network; the network may go on training."""
        return cls(((1.0, state_of(model)),))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Adapter":
        """Return the adapter in a file that `dctps.save` has written for a fine-tuned network."""
        return cls(((1.0, read_adapter(path)),))

    def attach(self, model: nn.Module, *, strict: bool = True, backend: str = AUTO) -> nn.Module:
        """Attach the adapter to a network, in place, and return the network; another adapter there is taken away.

        Raise ValueError, and leave the network as it was, if the adapter belongs to another architecture or to other
        weights W0. With `strict=False` other weights of the same shapes are only a warning.
        """
        check_backend(backend)
        outer, model = model, unwrapped(model)
        self._check(model, strict)
        take_away(model, restore=True)
        trained = [name for name, _ in model.named_parameters() if any(name in s.rest for _, s in self.terms)]
        supports = {name: self._support(name) for name in self._names()}
        scaled = {name for _, state in self.terms for name in state.alphas}
        weights = tunable(model, frozen_too=True)
        attach(model, weights, make_parts(weights, supports, backend=backend, scaled=scaled), trained)
        for name, weight in tuned_weights(model).items():
            self._fill(weight.part, name)
        self._write_rest(model)
        return outer

    def __add__(self, other: "Adapter") -> "Adapter":
        return Adapter(self.terms + other.terms)

    def __sub__(self, other: "Adapter") -> "Adapter":
        return self + -1.0 * other

    def __radd__(self, other: object) -> "Adapter":
        return self if other == 0 else NotImplemented  # sum() starts with 0

    def __mul__(self, factor: float) -> "Adapter":
        return Adapter(tuple((factor * weight, state) for weight, state in self.terms))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        nnz = sum(support.nnz for _, state in self.terms for support in state.supports.values())
        return f"Adapter(states={len(self.terms)}, weights={len(self._names())}, nnz={nnz:,})"

    # --- attaching

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for _, state in self.terms for name in state.supports))

    def _terms_of(self, name: str) -> list[tuple[float, AdapterState]]:
        return [(factor, state) for factor, state in self.terms if name in state.supports]

    def _support(self, name: str) -> Support:
        """Return the union of the supports that the states have for a weight."""
        supports = [state.supports[name] for _, state in self._terms_of(name)]
        if all(support == supports[0] for support in supports):
            return supports[0]
        return Support(supports[0].shape, torch.cat([s.positions.long() for s in supports]).unique())

    def _check(self, model: nn.Module, strict: bool) -> None:
        """Raise ValueError unless the network has a place for everything, and the weights W0 if `strict`."""
        if before(model) is None and tuned_weights(model):
            raise ValueError(
                "only a part of this network is fine-tuned, or it is a part of one that is; give the network that was "
                "given to sparsify, or detach or densify that first"
            )
        bases = base_weights(model)
        own = {id(p) for w in tuned_weights(model).values() for p in w.part.parameters()}
        places = {name: p for name, p in model.named_parameters() if id(p) not in own} | dict(saved_buffers(model))
        for _, state in self.terms:
            _check_shapes({n: s.shape for n, s in state.supports.items()}, bases, "weight")
            _check_shapes({n: tuple(t.shape) for n, t in state.rest.items()}, places, "tensor")
        taken = {id(bases[name]) for name in self._names()}
        twice = [name for _, state in self.terms for name in state.rest if id(places[name]) in taken]
        if twice:
            raise ValueError(f"the adapter has {twice[0]!r} as a whole and also as W0 + S; its states do not add up")
        for _, state in self.terms:
            if fingerprint({name: bases[name] for name in state.supports}) != state.base:
                _refuse_other_base(strict)

    @torch.no_grad()
    def _fill(self, part: SparsePart, name: str) -> None:
        """Write the weighted sum of the states into one sparse part, whose support is their union."""
        terms = self._terms_of(name)
        total = torch.zeros(part.nnz, dtype=torch.float64)
        for factor, state in terms:
            at = torch.searchsorted(part.positions.cpu().long(), state.supports[name].positions.long())
            total.index_add_(0, at, factor * state.values[name].double())
        part.values.copy_(total)  # a single state is float64's exact image, and comes back bit by bit
        if part.alpha is not None:
            alphas = [(factor, state.alphas[name].double()) for factor, state in terms if name in state.alphas]
            total = torch.stack([factor * (alpha - 1) for factor, alpha in alphas]).sum(0) + 1
            part.alpha.copy_(alphas[0][1] if len(alphas) == 1 and alphas[0][0] == 1 else total)

    def _write_rest(self, model: nn.Module) -> None:
        """Write the other tensors: that of the only state, or original + sum of factor * (state - original)."""
        was = before(model)
        assert was is not None
        found = dict[str, Tensor]()
        for name in dict.fromkeys(name for _, state in self.terms for name in state.rest):
            terms = [(factor, state.rest[name]) for factor, state in self.terms if name in state.rest]
            original = was.originals[name].cpu()
            if (len(terms) == 1 and terms[0][0] == 1) or not original.is_floating_point():
                found[name] = terms[0][1]
            else:
                changes = [factor * (tensor.double() - original.double()) for factor, tensor in terms]
                total = original.double() + torch.stack(changes).sum(0)
                found[name] = _variance(name, total, original) if name.endswith(VARIANCE) else total
        write_back(model, found)


def _variance(name: str, total: Tensor, original: Tensor) -> Tensor:
    """Return a weighted sum of running variances, with the original ones in the place of those below zero."""
    if bool((total < 0).any()):
        warnings.warn(
            f"the sum makes some of {name!r} negative, which a variance cannot be; they stay what they were before "
            "fine-tuning; estimate the statistics anew by dctps.recalibrate(model, batches)",
            stacklevel=4,
        )
    return torch.where(total < 0, original.double(), total)


VARIANCE = "running_var"  # how the names of running variances end


def _check_shapes(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor], noun: str) -> None:
    for name, shape in wanted.items():
        if name not in found:
            raise ValueError(f"the network has no {noun} {name!r}")
        if tuple(found[name].shape) != shape:
            raise ValueError(f"its {noun} {name!r} has shape {tuple(found[name].shape)}, the adapter {shape}")


def _refuse_other_base(strict: bool) -> None:
    what = "the adapter was trained on other weights W0 of the same names and shapes than those of this network"
    if strict:
        raise ValueError(f"{what}; load the network that it was trained on, or say strict=False to use it on this one")
    warnings.warn(f"{what}; outputs will not be those of the network that was fine-tuned", stacklevel=4)
