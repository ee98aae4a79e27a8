"""An accelerator that does not exist: a device `remote` whose tensors hold their numbers in tensors of the CPU.

Operators refuse tensors on the CPU beside tensors on the device, as those of a real accelerator do. Like some
accelerators it has neither numbers in float64 nor sparse matrices. Programs import this first, in a process of their
own, because torch then knows the device until the process ends.
"""

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

COPIES = {"aten::_to_copy", "aten::copy_"}  # operators that take tensors from one device to another
waits = []  # the calls of `synchronize`


class Remote(torch.Tensor):
    """A tensor on the device."""

    @staticmethod
    def __new__(cls, numbers):
        if numbers.dtype == torch.float64:
            raise TypeError("the device has no float64")
        facts = {"dtype": numbers.dtype, "device": "remote:0"}
        tensor = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, strides=numbers.stride(), **facts)
        tensor.numbers = numbers
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return run(operator, *args, **(kwargs or {}))

    def __repr__(self):
        return f"Remote({self.numbers!r})"


def run(operator, *args, **kwargs):
    """Run an operator that the device was given: ours by their own code, those of torch on the numbers."""
    if operator.namespace == "dctps":
        return operator.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1), *args, **kwargs)
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    if "sparse" in operator.name():
        raise NotImplementedError(f"the device does not have {operator.name()}")
    strangers = [tensor for tensor in tensors if not isinstance(tensor, Remote) and tensor.dim() > 0]
    if strangers and operator.name().split(".")[0] not in COPIES:
        raise RuntimeError(f"{operator.name()}: a tensor on the CPU of shape {tuple(strangers[0].shape)}")
    to_cpu = str(kwargs.get("device")) == "cpu"
    out = operator(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
    if operator.name().startswith("aten::copy_") or _is_in_place(operator):
        return args[0]
    return out if to_cpu else tree_map(lambda leaf: Remote(leaf) if isinstance(leaf, torch.Tensor) else leaf, out)


def _is_in_place(operator):
    return operator.name().split(".")[0].endswith("_") and not operator.name().startswith("aten::_")


def _numbers(leaf):
    if isinstance(leaf, Remote):
        return leaf.numbers
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf


class _Module(_DummyBackendModule):
    def get_device_name(self, device=None):
        return "Remote One"

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend("remote", _Module())
torch.accelerator.synchronize = lambda device=None: waits.append(device)
_fallback = torch.library.Library("_", "IMPL")
_fallback.fallback(run, "PrivateUse1")  # of operators that are given no tensor, like torch.zeros
_fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


_tensor = torch.tensor
torch.tensor = lambda data, *, device=None, **facts: _tensor(data, **facts, device="cpu").to(device or "cpu")
