"""The base of layers whose values have positions: where these live, and how they pass through states and copies.

The positions are no buffer, because other code averages, casts and overwrites buffers. They follow `.to()`, deepcopy
and pickle as a plain attribute, and `state_dict` as part of the extra state (`identity.py`).

Code that copies or averages tensors between networks (DistributedDataParallel, an average of weights) does not see
them, so it could give a layer values that belong to other positions. The buffer `fingerprint` tells: such code treats
it like any buffer, and a layer refuses to compute when it is that of other positions. It holds the four bytes b of a
checksum, and 255 - b. The sums of 255 stay in copies and averages; a fingerprint without them was overwritten by code
that overwrites all buffers, and says nothing.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from dctps.core.support import Support
from dctps.nn import identity

EXTRA = "_extra_state"  # torch's name of the extra state in a state_dict
ROUNDING = 1.5  # averages of equal bytes may differ from them by this much in bfloat16


class SupportedLayer(nn.Module):
    """A layer with values at the positions of a support."""

    seed: int | None  # the seed that gives the positions, if there is one; a file may hold it in their place
    fingerprint: Tensor  # (2, 4), see above; not part of the state
    _positions: Tensor
    _checked: Any = None  # the tensors for which the fingerprint was last found right
    _own_fingerprint: Any = None  # the fingerprint of the positions, with the tensor of positions for which it was made

    @property
    def positions(self) -> Tensor:  # (nnz,)
        """The positions of the values in the flattened weight: sorted, distinct, changed by `move` alone."""
        return self._positions

    def _hold(self, support: Support, device: torch.device | str | None = None) -> None:
        """Take the positions of a support; if they are as many as before, the tensor of positions stays the same."""
        new, old = support.positions, self.__dict__.get("_positions")
        same = old is not None and torch.equal(old.cpu(), new.cpu())
        self.seed = self.seed if same and support.seed is None else support.seed
        if old is not None and not old.is_inference():
            old.add_(0)  # autograd then refuses the graph of an earlier pass, which belongs to the former positions
        if old is not None and old.shape == new.shape and not old.is_inference():
            old.copy_(new)
        else:
            self._positions = new.to(old.device if old is not None else device or torch.get_default_device(), copy=True)
        self._sign()

    def _sign(self) -> None:
        """Make the fingerprint that of the positions; the buffer stays the same tensor, because others may hold it."""
        old, new = self._buffers.get("fingerprint"), self._expected_fingerprint()
        if old is None or old.is_meta or old.is_inference():
            self.register_buffer("fingerprint", new.to(self._positions.device, copy=True), persistent=False)
        else:
            old.detach().copy_(new)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(self._positions.new_empty(0)).device
        if device.type != "meta":  # a layer on the meta device still knows its positions
            self._positions = self._positions.to(device)
        return self

    # --- the check in each forward pass

    def _check_positions(self) -> None:
        """Raise RuntimeError if the values were copied from, or averaged with, those of another support."""
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return
        mark = mark_of(self._positions), mark_of(self._buffers["fingerprint"])
        if mark != self._checked:
            self._compare_fingerprint()
            self._checked = mark

    def _compare_fingerprint(self) -> None:
        with torch._C._DisableFuncTorch(), torch.no_grad():
            found = _unwrapped(self.fingerprint)  # (2, 4), or (members, 2, 4) under vmap over an ensemble
            if found.is_meta or self._positions.is_meta:
                return
            numbers = found.cpu().double()  # not every device has float64
            is_fingerprint = (numbers.sum(-2) - 255).abs() <= 2 * ROUNDING
            differs = (numbers - self._expected_fingerprint()).abs() > ROUNDING
            foreign = is_fingerprint.all(-1) & differs.flatten(-2).any(-1)
        if bool(foreign.any()):
            raise RuntimeError(
                f"the values of this {type(self).__name__} belong to other positions than its own: the positions were "
                "changed in place, or the values come from a network with another support, by DistributedDataParallel "
                "or an average of weights; use `move` or `load_state_dict`, or sparsify all networks with one seed"
            )

    def _expected_fingerprint(self) -> Tensor:
        """Return the fingerprint of the positions, which is computed again only when they have changed."""
        mark = mark_of(self._positions)
        if self._own_fingerprint is None or self._own_fingerprint[0] != mark:
            self._own_fingerprint = mark, _fingerprint(self._positions)
        expected: Tensor = self._own_fingerprint[1]
        return expected

    # --- the state

    def _weight_shape(self) -> tuple[int, ...]:
        """Return the shape whose flat indices the positions are."""
        raise NotImplementedError

    def _offset_name(self) -> str | None:
        """Return the name of the offset, which a state must share with the layer."""
        return None

    def _why_not_values(self, state: dict[str, Any], prefix: str) -> str | None:
        """Return why the values of a state cannot be loaded into this layer, or None if they can."""
        raise NotImplementedError

    def _check_tensors(self, state: dict[str, Any], prefix: str) -> None:
        """Raise ValueError unless the state has a tensor of the right shape for each parameter, or nothing at all.

        Positions without their values would leave the layer with its own values at the places of another.
        """
        for name, own in self._parameters.items():
            given = state.get(prefix + name)
            if prefix + name in state and not isinstance(given, Tensor):
                raise ValueError(f"the state holds a {type(given).__name__} as {name!r}, not a tensor")
            if own is not None and given is not None and given.shape != own.shape:
                found = f"{name!r} of shape {tuple(given.shape)}, this layer of {tuple(own.shape)}"
                raise ValueError(f"the state holds {found}; sparsify with the same density")
            if name in ("values", "scale", "shift") and prefix + EXTRA in state and given is None:
                raise ValueError(f"the state holds positions without {name!r}, which belongs to them")

    def get_extra_state(self) -> Tensor:  # uint8
        """Return the identity of the layer, positions included, for its state_dict."""
        return identity.encode(Support(self._weight_shape(), self._positions, self.seed), self._offset_name())

    def set_extra_state(self, state: Tensor) -> None:
        """Take the positions of a state; `_load_from_state_dict` has checked that it fits."""
        with torch.no_grad():
            self._hold(identity.decode(state)[0])

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        state = dict(state_dict)
        try:
            self._update_state(state, prefix, local_metadata)
            self._check_identity(state, prefix)
            problem = self._why_not_values(state, prefix)
            if problem is None:
                self._check_tensors(state, prefix)
        except ValueError as error:
            problem = str(error)
        if problem:
            error_msgs.append(f"{prefix[:-1] or 'layer'}: {problem}")
            return
        super()._load_from_state_dict(state, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _update_state(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
        """Bring a state of an earlier version, which held `positions` as a tensor of its own, into today's form."""
        if prefix + "positions" in state and prefix + EXTRA not in state:
            positions = state.pop(prefix + "positions")
            facts = metadata.get("dctps", {"shape": self._weight_shape(), "offset": self._offset_name()})
            support = Support(tuple(facts["shape"]), positions)
            seed = self.seed if torch.equal(support.positions.cpu(), self._positions.cpu()) else None
            state[prefix + EXTRA] = identity.encode(Support(support.shape, positions, seed), facts["offset"])

    def _check_identity(self, state: dict[str, Any], prefix: str) -> None:
        """Raise ValueError unless the state says that it is of a layer with this shape, offset and number of values."""
        if prefix + EXTRA not in state:
            if any(prefix + key in state for key in ("values", "scale")):
                raise ValueError(f"the state holds values without their positions, which are in {prefix + EXTRA!r}")
            return
        support, offset = identity.decode(state[prefix + EXTRA])
        theirs, mine = (support.shape, offset), (self._weight_shape(), self._offset_name())
        if theirs != mine:
            found = f"shape {theirs[0]} and offset {theirs[1]}, this layer has shape {mine[0]} and offset {mine[1]}"
            raise ValueError(f"the state belongs to a layer with {found}")
        if support.nnz != len(self._positions):
            counts = f"the state holds {support.nnz} positions, this layer {len(self._positions)}"
            raise ValueError(f"{counts}; sparsify with the same density")


def saved_support(state: Mapping[str, Any], layer: str, shape: tuple[int, ...]) -> Support:
    """Return the support that a layer of this name and shape has in the state of a network."""
    prefix = f"{layer}." if layer else ""
    if prefix + EXTRA in state:
        return identity.decode(state[prefix + EXTRA])[0]
    return Support(shape, state[f"{prefix}positions"])  # a state of an earlier version


def _fingerprint(positions: Tensor) -> Tensor:  # (2, 4)
    """Return the bytes b of a checksum and 255 - b, which every floating point type holds exactly."""
    checksum = zlib.crc32(positions.cpu().contiguous().numpy().data).to_bytes(4, "little")
    return torch.tensor([list(checksum), [255 - byte for byte in checksum]], dtype=torch.float32, device="cpu")


def mark_of(tensor: Tensor | None) -> tuple[int, int]:
    """Return what changes when a tensor is replaced or changed in place."""
    return id(tensor), -1 if tensor is None or tensor.is_inference() else tensor._version


def _unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor under the wrappers of torch.func."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
