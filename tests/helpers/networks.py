"""A small convolutional network, and the check that a failure leaves a network as it was."""

import torch
from torch import nn


def cnn() -> nn.Module:
    """Two convolutions, the second nested, BatchNorm and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding="valid", padding_mode="zeros"), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def snapshot(model: nn.Module):
    """What must be the same after a failure: the modules, their tensors (objects and contents), the mode."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [id(m) for m in model.modules()], [(n, id(t), t.detach().clone()) for n, t in tensors], model.training


def assert_unchanged(model, before):
    """Check that a model still is what `snapshot` found."""
    modules, tensors, training = before
    now = snapshot(model)
    assert now[0] == modules
    assert now[2] == training
    for (name, identity, tensor), (name_now, identity_now, tensor_now) in zip(tensors, now[1], strict=True):
        assert (name, identity) == (name_now, identity_now)
        assert tensor.is_meta or torch.equal(tensor, tensor_now)
