"""The seconds that a training step of a network takes, measured as `dctps reproduce` would run it.

As many processes as a sweep starts measure at the same time, each with as many threads, so that each network is
measured while the other cores are busy too. A step is the trainer's: a batch of images, cropped and mirrored, forward,
backward and the optimiser's update. Its time is the median of several steps after one that does not count. A step that
would take long is measured on a few images; then the time of the passes is multiplied, and that of the update is not.
All networks are measured in turn, in several rounds, and the median of the rounds counts: whatever else the machine
does for a while disturbs one round of some networks.
"""

import collections
import datetime
import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

import torch
import torch.nn.functional as F

from dctps.base.machine import flushed_denormals, keep_memory
from dctps.data import DATASETS, Batches, Dataset
from dctps.experiments.estimate import Measurement, identity_of, image_shape, key_of
from dctps.ops import autotune
from dctps.train.optimise import build_optimiser
from dctps.train.runs import RunError
from dctps.train.settings import Settings
from dctps.train.setup import prepare

FEW_IMAGES = 8  # in a step of a network whose whole batch would take long
LONG = 1.0  # seconds of a step above which it is measured on a few images
ROUNDS = 3
FEWEST_STEPS, MOST_STEPS = 2, 15  # steps of a round that count
ENOUGH = 0.3  # seconds after which no more steps are taken, once there are the fewest


def measure(
    needed: Sequence[Settings], processes: int, threads: int, tick: Callable[[], object] = lambda: None
) -> Measurement:
    """Return the measurement of a step of each of these settings; `tick` is called ROUNDS times for each of them."""
    started, times = time.perf_counter(), collections.defaultdict[str, list[float]](list)
    for settings, seconds in _in_rounds(needed, processes, threads):
        times[key_of(settings)].append(seconds)
        tick()
    return Measurement(
        identity_of(processes, threads),
        datetime.date.today().isoformat(),
        round(time.perf_counter() - started, 1),
        spread=round(statistics.median(max(own) / min(own) for own in times.values()), 2) if times else 1.0,
        seconds={key: statistics.median(own) for key, own in times.items()},
    )


def _in_rounds(needed: Sequence[Settings], processes: int, threads: int) -> Iterator[tuple[Settings, float]]:
    """Yield all settings in turn, ROUNDS times, each with the seconds of one of its steps."""
    context = multiprocessing.get_context("spawn")  # a fork would share torch's threads, which do not survive it
    pool = ProcessPoolExecutor(processes, context, initializer=_start, initargs=(threads,))
    rounds = [settings for _ in range(ROUNDS) for settings in needed]
    try:
        yield from zip(rounds, pool.map(step_seconds, rounds), strict=True)
    except BrokenExecutor as error:
        raise RunError(
            "a process of the measurement died, perhaps because memory ran out; fewer need less: --processes 1"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(threads: int) -> None:
    """Prepare a process: it has the threads and memory of a run's, and its parent alone answers Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    keep_memory()


def step_seconds(settings: Settings) -> float:
    """Return the seconds of a training step on a whole batch."""
    with torch.random.fork_rng(), flushed_denormals(), autotune.by_rule():
        few = min(FEW_IMAGES, settings.batch_size)
        passes, update = _median_step(settings, few)
        if few < settings.batch_size and passes * settings.batch_size / few <= LONG:
            few = settings.batch_size
            passes, update = _median_step(settings, few)
        return passes * settings.batch_size / few + update


def _median_step(settings: Settings, images: int) -> tuple[float, float]:
    """Return the seconds of the passes over so many images and those of the update, medians of several steps."""
    steps = list(_steps(settings, images))
    return statistics.median(passes for passes, _ in steps), statistics.median(update for _, update in steps)


def _steps(settings: Settings, images: int) -> Iterator[tuple[float, float]]:
    """Take training steps, and yield the seconds of their passes and of their updates; the first does not count."""
    dataset = _noise(settings, images)
    model, _ = prepare(settings, dataset, torch.device("cpu"))
    optimiser = build_optimiser(model, settings)
    d = dataset
    batches = Batches(
        d.train_images, d.train_labels, range(images), images, d.mean, d.std, padding=d.padding, flip=d.flip
    )
    begun = time.perf_counter()
    for step in range(1 + MOST_STEPS):
        started = time.perf_counter()
        ((x, y),) = batches.epoch(step)
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        passed = time.perf_counter()
        optimiser.step()
        updated = time.perf_counter()
        if step:
            yield passed - started, updated - passed
        if step >= FEWEST_STEPS and updated - begun > ENOUGH:
            return


def _noise(settings: Settings, count: int) -> Dataset:
    """Return so many images of noise, of the shape and with the classes of the run's data set."""
    info = DATASETS.get(settings.data)
    images = torch.randint(256, (count, *image_shape(settings.data)), dtype=torch.uint8)
    labels, numbers = torch.zeros(count, dtype=torch.int64), (0.5,) * images.shape[1]
    return Dataset(settings.data, images, labels, images, labels, info.classes if info else 10, numbers, numbers)
