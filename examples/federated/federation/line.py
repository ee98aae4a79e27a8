"""A line of the figure: the settings of one federated training, its network, its data and what a client does.

Nothing here knows Flower.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dctps
from dctps.data import Batches, Dataset
from dctps.federated import Arrays, Sender, arrays, pack, set_arrays, unpack

METHODS = ("dctps", "random", "dense")  # W = alpha D + S, S alone, dense FedAvg
VALIDATION = 0.1  # the share of the training images that no client has, by which learning rates were chosen


@dataclasses.dataclass(frozen=True)
class Line:
    """The settings of one federated training.

    method: one of METHODS; density: of the first two.
    updates: what clients send: "whole" arrays, or differences in "float16" or "int8" with error feedback.
    clients, sampled: how many there are, and how many take part in a round.
    concentration: of the Dirichlet distribution by which each class is dealt to the clients.
    steps: the most batches that a client trains on in a round; one with fewer images sees each of them once.
    measured_on: "test" or "validation" images, after every `measured_every` rounds.
    """

    method: str = "dctps"
    density: float = 0.01
    updates: str = "whole"
    seed: int = 0
    rounds: int = 50
    dataset: str = "cifar10"
    model: str = "lenet"
    clients: int = 20
    sampled: int = 5
    concentration: float = 0.3
    batch: int = 32
    steps: int = 20
    lr: float = 1e-2
    measured_on: str = "test"
    measured_every: int = 5

    def __post_init__(self) -> None:
        for name, known in (
            ("method", METHODS),
            ("updates", ("whole", *dctps.federated.KINDS)),
            ("measured_on", ("test", "validation")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of: {', '.join(known)}")
        if not 1 <= self.sampled <= self.clients or self.rounds < 1:
            raise ValueError(f"{self.sampled} of {self.clients} clients in {self.rounds} rounds are not possible")
        if self.rounds % self.measured_every:
            raise ValueError(f"{self.rounds} rounds do not end with a measurement, of one in {self.measured_every}")

    @property
    def name(self) -> str:
        """The name of the line and of its file."""
        what = [self.method] + ([f"{self.density:g}"] if self.method != "dense" else [])
        what += [self.updates] if self.updates != "whole" else []
        return "-".join([*what, self.model, f"seed{self.seed}"])


def network(line: Line) -> nn.Module:
    """Return the network as it is before the first round, the same on every side."""
    torch.manual_seed(line.seed)
    facts = dctps.data.DATASETS[line.dataset]
    net = dctps.models.build(line.model, facts.classes, facts.channels)
    if line.method == "dctps":
        return dctps.sparsify(net, line.density, seed=line.seed)
    if line.method == "random":
        return dctps.sparsify(net, line.density, seed=line.seed, offset=None)
    return net


# --- data -------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def dataset(name: str) -> Dataset:
    """Return the data set, which is read once in each process."""
    return dctps.data.load(name)


@functools.lru_cache(maxsize=8)
def shares(line: Line) -> list[Tensor]:
    """Return the indices of the training images that each client has, by a Dirichlet distribution for each class."""
    labels = dataset(line.dataset).train_labels
    training, _ = dctps.data.split(len(labels), line.seed, fraction=VALIDATION)
    rng = np.random.default_rng([line.seed, 1])
    while True:  # until each client has a batch
        dealt: list[list[Tensor]] = [[] for _ in range(line.clients)]
        for label in range(int(labels.max()) + 1):
            own = training[labels[training] == label]
            cuts = np.cumsum(rng.dirichlet([line.concentration] * line.clients))[:-1]
            for share, part in zip(dealt, own.tensor_split((cuts * len(own)).astype(int).tolist()), strict=True):
                share.append(part)
        found = [torch.cat(parts) for parts in dealt]
        if min(map(len, found)) >= line.batch:
            return found


def measured(line: Line) -> Batches:
    """Return the images on which the server measures the accuracy."""
    data = dataset(line.dataset)
    if line.measured_on == "test":
        return Batches(
            data.test_images, data.test_labels, torch.arange(len(data.test_labels)), 1000, data.mean, data.std
        )
    _, validation = dctps.data.split(len(data.train_labels), line.seed, fraction=VALIDATION)
    return Batches(data.train_images, data.train_labels, validation, 1000, data.mean, data.std)


def client_batches(line: Line, client: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a client in a round: the first ones of its images, newly shuffled, without augmentation."""
    data, own = dataset(line.dataset), shares(line)[client]
    batches = Batches(
        data.train_images,
        data.train_labels,
        own,
        line.batch,
        data.mean,
        data.std,
        shuffle=True,
        seed=line.seed * line.clients + client,
    )
    yield from itertools.islice(batches.epoch(number), line.steps)


# --- one client, one round --------------------------------------------------------------------------------------------


def client_round(
    line: Line, client: int, number: int, packet: np.ndarray, residual: Arrays | None
) -> tuple[np.ndarray, int, Arrays | None]:
    """Train the network of a packet on the images of a client.

    Returns the packet to send back, the number of images, and the residual that the client keeps to its next round.
    """
    net = network(line)
    received = unpack(packet, arrays(net))
    set_arrays(net, received)
    train(net, line, client, number)
    if line.updates == "whole":
        return pack(arrays(net)), len(shares(line)[client]), None
    sender = Sender(line.updates, residual)
    return sender.pack(received, arrays(net)), len(shares(line)[client]), sender.residual


def train(net: nn.Module, line: Line, client: int, number: int) -> None:
    """Train a network by Adam, whose moments start at zero in each round."""
    net.train()
    torch.manual_seed(line.seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=line.lr)
    for x, y in client_batches(line, client, number):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()


@torch.no_grad()
def accuracy(net: nn.Module, line: Line) -> float:
    """Return the share of the measured images that the network knows, in percent."""
    net.eval()
    hits = [net(x).argmax(1) == y for x, y in measured(line).epoch(0)]
    return 100 * torch.cat(hits).float().mean().item()
