"""`dctps finetune`: what it leaves, that it goes on bit-equal, the adapters that it writes, and its errors."""

import copy
import dataclasses
import json
import math
import os
import random
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch

import dctps
from dctps import CheckpointError
from dctps.base import extras
from dctps.cli import main
from dctps.experiments.results import read
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.finetune import frozen_parameters, load_trained_state, supports_in, trained_state
from dctps.train import Interrupted, RunError, finetune
from dctps.train.finetuning import plan
from dctps.train.finetuning.loading import load_network
from dctps.train.finetuning.network import IMAGENET
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.loop import Trainer
from helpers.finetune_runs import (
    NETWORK,
    image_settings,
    network,
    other_network,
    text_settings,
    write_bert,
    write_images,
    write_table,
)
from helpers.kills import PHASES, SETUP, TRAINING, Kill, Siege, assert_same_runs, draw_kills, flags
from helpers.mutations import mutated
from helpers.runs import runtime

pytest.importorskip("PIL")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "photos")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("table") / "train.tsv")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    """A finished fine-tuning on images, which no test changes."""
    runs = tmp_path_factory.mktemp("runs")
    settings = image_settings(images, epochs=4)
    return settings, FinetuneRun.at(settings, runs), finetune(settings, runtime(runs))


def kind(name, images, table, bert):
    """Settings of fine-tunings of several kinds."""
    return {
        "images": lambda: image_settings(images),
        "images by magnitude, set": lambda: image_settings(
            images, support="magnitude", rewire="set", rewire_every=2, train=("classifier", "norms")
        ),
        "texts": lambda: text_settings(table, bert),
        "texts by snip, rigl": lambda: text_settings(
            table, bert, support="snip", exclude=("*embeddings*",), rewire="rigl", rewire_every=2, schedule="cosine"
        ),
    }[name]()


KINDS = ["images", "images by magnitude, set", "texts", "texts by snip, rigl"]


def interrupted_at(monkeypatch, epoch, step):
    """Send SIGTERM in this step of a training."""
    original = Trainer._step

    def spy(self, *arguments):
        if (self.progress.epoch, self.progress.step) == (epoch, step):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", spy)


# --- what it leaves ---------------------------------------------------------------------------------------------------


def test_it_learns_the_colours_and_says_what_trained(finished):
    settings, run, result = finished
    assert result["accuracy"]["test_at_best"] == 1
    tuned = dctps.sparsify(network(), 0.2, offset="pretrained", train="classifier")
    report = dctps.report(tuned)
    assert result["parameters"] == {
        "sparse": report.nnz,
        "whole": sum(row.size for row in report.trained),
        "frozen": sum(row.size for row in report.frozen),
    }
    assert result["examples"] == {"training": 38, "validation": 5, "test": 5} | {
        "training": 48 - 5 - 4,
        "validation": 4,
    }
    assert result["classes"] == ["blue", "green", "red"]
    assert result["bytes"]["adapter"] == run.best.stat().st_size
    assert result["settings"]["density"] == settings.density
    assert result == json.loads(run.result.read_text())
    assert {path.name for path in run.folder.iterdir()} == {
        *("config.json", "metrics.jsonl", "result.json", "last.pt", "best.safetensors", "adapter", "lock")
    }


def test_the_adapter_is_the_network_of_the_best_epoch(finished):
    settings, run, result = finished
    one, other = dctps.load(run.best, network()), dctps.from_pretrained(run.adapter, network())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert "sparse adapter" in (run.adapter / "README.md").read_text()
    model, batches = _rebuilt(settings)
    dctps.load(run.best, model)
    x, y = next(batches.test.epoch(0))
    with torch.no_grad():
        assert (model.eval()(x).argmax(1) == y).float().mean() == result["accuracy"]["test_at_best"]


def _rebuilt(settings):
    from dctps.train.finetuning.examples import load_examples, make_batches

    examples = load_examples(settings)
    loaded = load_network(settings.model, examples.classes, texts=False, max_length=8)
    return loaded.model, make_batches(settings, examples, loaded, torch.device("cpu"))[0]


def test_a_finished_run_is_not_trained_again(finished, monkeypatch, capsys):
    settings, run, result = finished
    monkeypatch.setattr(Trainer, "train", lambda self: pytest.fail("trained again"))
    loud = dataclasses.replace(runtime(run.folder.parent), quiet=False)
    assert finetune(settings, loud) == result
    assert "is finished: test accuracy 100.00 %" in capsys.readouterr().out


def test_the_adapter_of_texts_is_attached_to_the_network_of_transformers(table, bert, tmp_path):
    import transformers

    settings = text_settings(table, bert, epochs=8, density=0.5, lr=0.05)
    result = finetune(settings, runtime(tmp_path))
    assert result["accuracy"]["test_at_best"] >= 0.8
    assert "transformers" in result["versions"]
    run = FinetuneRun.at(settings, tmp_path)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(bert, num_labels=2)
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    dctps.from_pretrained(run.adapter, base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    with torch.no_grad():
        logits = base.eval()(**tokenizer(["the film is good", "so bad"], padding=True, return_tensors="pt")).logits
    assert logits.argmax(1).tolist() == [1, 0]
    dctps.detach(base)
    assert all(torch.equal(p, before[name]) for name, p in base.named_parameters())


def test_a_network_of_transformers_for_images_with_a_classifier_of_another_size(images, tmp_path):
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=7)
    transformers.ViTForImageClassification(config).save_pretrained(folder := tmp_path / "vit")
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "size": {"height": 20}}')
    network = load_network(str(folder), ["a", "b", "c"], texts=False, max_length=1)
    assert network.new == ("classifier.weight", "classifier.bias")
    assert (network.takes.size, network.takes.mean, network.takes.std) == (16, (0.5, 0.5, 0.5), IMAGENET[1])
    settings = image_settings(images, model=str(folder), epochs=1)
    assert finetune(settings, runtime(tmp_path / "runs"))["parameters"]["whole"] == 3 * 17
    base = transformers.AutoModelForImageClassification.from_pretrained(
        folder, num_labels=3, ignore_mismatched_sizes=True
    )
    dctps.from_pretrained(FinetuneRun.at(settings, tmp_path / "runs").adapter, base)


def test_the_parts_of_data_that_are_given_are_taken(bert, tmp_path):
    tables = [write_table(tmp_path / f"{n}.csv.tsv", n, n, "text\tlabel") for n in (24, 10, 12)]
    settings = text_settings(tables[0], bert, validation_data=str(tables[1]), test_data=str(tables[2]), epochs=1)
    assert finetune(settings, runtime(tmp_path / "runs"))["examples"] == {"training": 24, "validation": 10, "test": 12}
    folder = write_images(tmp_path / "photos", 4, 9, ("train", "val", "test"))
    result = finetune(image_settings(folder, image_size=16, epochs=1), runtime(tmp_path / "runs"))
    assert result["examples"] == {"training": 12, "validation": 12, "test": 12}


# --- how it trains ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_learning_rate_rises_and_falls(schedule):
    settings = FinetuneSettings("x", "y", lr=2.0, warmup=0.3, schedule=schedule)
    rates = [plan.learning_rate(settings, 10, step) for step in range(10)]
    assert rates[:4] == pytest.approx([0.5, 1, 1.5, 2])
    fallen = {"linear": [2 * (1 - n / 7) for n in range(7)], "constant": [2] * 7}
    fallen["cosine"] = [1 + math.cos(math.pi * n / 7) for n in range(7)]
    assert rates[3:] == pytest.approx(fallen[schedule])


@pytest.mark.parametrize("support", ["random", "magnitude"])
def test_the_support_is_that_of_the_library(support, images, tmp_path):
    settings = image_settings(images, support=support, epochs=1, seed=3)
    finetune(settings, runtime(tmp_path))
    net, options = network(), {"offset": "pretrained", "train": "classifier"}
    if support == "random":
        dctps.sparsify(net, settings.density, seed=3, **options)
    else:
        supports = dctps.prune(net, "magnitude", settings.density, exclude="classifier", seed=3)
        dctps.sparsify(net, supports=supports, **options)
    found = tuned_weights(dctps.load(FinetuneRun.at(settings, tmp_path).best, network()))
    expected = tuned_weights(net)
    assert found.keys() == expected.keys() == {"0", "3"}
    assert all(found[name].part.support == expected[name].part.support for name in found)


def test_what_is_frozen_is_not_in_the_state(finished):
    _, run, _ = finished
    saved = run.load_state()
    net = dctps.sparsify(network(), 0.2, offset="pretrained", train="classifier", seed=5)
    frozen = frozen_parameters(net)
    assert set(frozen) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert not set(frozen) & saved.model.keys()
    assert {*saved.model, *frozen} == net.state_dict().keys()
    load_trained_state(net, saved.model)
    assert {name: support.nnz for name, support in supports_in(saved.model, network()).items()} == {
        name: weight.part.nnz for name, weight in tuned_weights(net).items()
    }
    assert all(torch.equal(net.state_dict()[name], value) for name, value in saved.model.items())
    assert trained_state(network()).keys() == network().state_dict().keys()
    with pytest.raises(ValueError, match="another part of the network trains"):
        load_trained_state(net, {name: v for name, v in saved.model.items() if name != "classifier.bias"})


# --- it goes on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_an_interrupted_run_goes_on_and_ends_bit_equal(name, images, table, bert, tmp_path, monkeypatch):
    settings = kind(name, images, table, bert)
    with monkeypatch.context() as patch:
        interrupted_at(patch, 1, 2)
        with pytest.raises(Interrupted, match="stopped at epoch 2, step 3"):
            finetune(settings, runtime(tmp_path / "two"))
    for folder in ("two", "one"):
        finetune(settings, runtime(tmp_path / folder))
    assert_same_runs(tmp_path / "two", tmp_path / "one")


def test_a_run_that_goes_on_is_not_scored_again(images, tmp_path, monkeypatch):
    from dctps.train.finetuning import setup

    settings = image_settings(images, support="snip")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 0, 1)
        with pytest.raises(Interrupted):
            finetune(settings, runtime(tmp_path))
    monkeypatch.setattr(setup, "prune", lambda *_, **__: pytest.fail("scored again"))
    assert finetune(settings, runtime(tmp_path))["pruning"]["backward_passes"] == 1


@pytest.mark.parametrize("support", ["magnitude", "snip"])
def test_a_network_with_two_names_for_a_layer_goes_on(support, images, tmp_path, monkeypatch):
    settings = image_settings(images, model="helpers.finetune_runs:TwoNames", support=support)
    with monkeypatch.context() as patch:
        interrupted_at(patch, 1, 1)
        with pytest.raises(Interrupted):
            finetune(settings, runtime(tmp_path / "two"))
    for folder in ("two", "one"):
        finetune(settings, runtime(tmp_path / folder))
    assert_same_runs(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize("name", ["best.safetensors", "config.json", "result.json"])
def test_a_process_that_dies_while_it_writes_the_end_goes_on(name, images, tmp_path, monkeypatch):
    settings, replace = image_settings(images, epochs=1), os.replace

    def dies(source, target):
        if Path(target).name == name and (name == "best.safetensors" or "last.pt" in os.listdir(run.folder)):
            raise KeyboardInterrupt
        return replace(source, target)

    run = FinetuneRun.at(settings, tmp_path / "two")
    with monkeypatch.context() as patch:
        patch.setattr("dctps.base.files.os.replace", dies)
        with pytest.raises(KeyboardInterrupt):
            finetune(settings, runtime(tmp_path / "two"))
    assert run.finished() is None
    for folder in ("two", "one"):
        finetune(settings, runtime(tmp_path / folder))
    assert_same_runs(tmp_path / "two", tmp_path / "one")


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes in /proc")
class TestKills:
    def test_a_kill_changes_nothing(self, images, tmp_path):
        siege = Siege(image_settings(images, epochs=12), tmp_path)
        siege.suffer(Kill(signal.SIGKILL, TRAINING, 0.4))
        siege.finish()
        assert len(siege.deaths) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("name", KINDS)
    def test_thirty_kills_change_nothing(self, name, images, table, bert, tmp_path):
        siege = Siege(dataclasses.replace(kind(name, images, table, bert), epochs=12), tmp_path)
        for kill in draw_kills(name):
            siege.suffer(kill)
        siege.finish()
        print(siege.report(name))
        assert Counter(death.kill.number.name for death in siege.deaths) == {"SIGKILL": 10, "SIGTERM": 10, "SIGINT": 10}
        assert {death.phase for death in siege.deaths} >= PHASES - {SETUP}
        assert siege.in_a_row() >= 2


# --- damaged and foreign files ----------------------------------------------------------------------------------------


@pytest.fixture
def stopped(images, tmp_path, monkeypatch):
    """The settings and the folder of a run that was stopped in its second epoch."""
    settings = image_settings(images, support="snip", rewire="set", rewire_every=2)
    with monkeypatch.context() as patch:
        interrupted_at(patch, 1, 1)
        with pytest.raises(Interrupted):
            finetune(settings, runtime(tmp_path))
    return settings, FinetuneRun.at(settings, tmp_path)


def test_mutated_states_are_refused_or_change_nothing_else(stopped, monkeypatch):
    settings, run = stopped
    content, rng, refused = torch.load(run.last, weights_only=True), random.Random(0), 0
    accepted = 0
    monkeypatch.setattr(Trainer, "train", lambda self: {})
    for _ in range(60):
        torch.save(mutated(rng, content), run.last)
        try:
            finetune(settings, runtime(run.folder.parent))
        except RunError as error:
            refused += bool(re.search(r"last\.pt .*; delete it to start", str(error)))
        else:
            accepted += 1
    assert refused + accepted == 60
    assert refused > 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(base="0" * 32), "trained from other weights than helpers.finetune_runs:network now has"),
        (lambda s: s.update(data="0" * 32), "trained on other data than"),
        (lambda s: s.update(id="0" * 12), "of other settings"),
        (lambda s: s.pop("base"), "trained from other weights"),
        (lambda s: s["model"].pop("0.sparse_part.weight._extra_state"), "does not fit this run"),
        (lambda s: s["model"].pop("classifier.weight"), "states differ in 'classifier.weight'"),
        (lambda s: s["model"].update({"0.sparse_part.weight.values": torch.ones(3)}), "does not fit this run"),
    ],
)
def test_states_of_other_runs_are_refused(change, message, stopped):
    settings, run = stopped
    content = torch.load(run.last, weights_only=True)
    change(content)
    torch.save(content, run.last)
    with pytest.raises(RunError, match=message):
        finetune(settings, runtime(run.folder.parent))


def test_a_network_whose_weights_have_changed_is_refused(table, tmp_path, monkeypatch):
    bert = write_bert(tmp_path / "bert")
    settings = text_settings(table, bert)
    interrupted_at(monkeypatch, 0, 2)
    with pytest.raises(Interrupted):
        finetune(settings, runtime(tmp_path / "runs"))
    write_bert(bert, seed=2)
    with pytest.raises(RunError, match="trained from other weights than"):
        finetune(settings, runtime(tmp_path / "runs"))


def test_mutated_adapters_give_the_error_of_files(finished, tmp_path):
    _, run, _ = finished
    rng = random.Random(0)
    for source, load in ((run.best, dctps.load), (run.adapter, dctps.from_pretrained)):
        for _ in range(40):
            folder = tmp_path / f"{source.name}-{rng.random()}"
            folder.mkdir()
            file = source if source.is_file() else source / "adapter.safetensors"
            content = bytearray(file.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            (folder / file.name).write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
            if source.is_dir():
                (folder / "config.json").write_bytes((source / "config.json").read_bytes())
            base = network()
            before = copy.deepcopy(base.state_dict())
            with pytest.raises(CheckpointError):
                load(folder if source.is_dir() else folder / file.name, base)
            assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


def test_an_adapter_of_other_weights_is_refused(finished):
    _, run, _ = finished
    for load, source in ((dctps.load, run.best), (dctps.from_pretrained, run.adapter)):
        with pytest.raises(CheckpointError, match="other weights W0"):
            load(source, other_network())
        with pytest.raises(CheckpointError, match=r"does not fit|no weight"):
            load(source, torch.nn.Linear(3, 3))


def test_a_best_adapter_that_was_damaged_before_the_end_is_named(stopped):
    settings, run = stopped
    run.best.write_bytes(run.best.read_bytes()[:-9])
    content = torch.load(run.last, weights_only=True)
    content["progress"] |= {"best_validation": 1.0}  # so that no later epoch replaces it
    torch.save(content, run.last)
    with pytest.raises(RunError, match=r"best\.safetensors cannot be used \(.*; delete .* to start this run again"):
        finetune(settings, runtime(run.folder.parent))
    assert run.finished() is None


@pytest.mark.parametrize(("key", "value"), [("id", "x"), ("classes", 5), ("seconds", -1), ("settings", {"data": 1})])
def test_a_wrong_value_in_a_result_is_named(key, value, finished, tmp_path, capsys):
    settings, run, result = finished
    (folder := tmp_path / run.folder.name).mkdir()
    (folder / "config.json").write_bytes(run.config.read_bytes())
    (folder / "result.json").write_text(json.dumps({**result, key: value}))
    with pytest.raises(RunError, match=rf"result\.json is damaged \(.*{key}"):
        finetune(settings, runtime(tmp_path))
    assert main(["inspect", str(folder)]) == 2
    assert key in capsys.readouterr().err


# --- the command and its errors ---------------------------------------------------------------------------------------


def test_the_command_trains_and_inspect_shows_its_folder(images, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = image_settings(images, epochs=1)
    assert main(["finetune", *flags(settings), "--threads", "1", "--no-keep-memory"]) == 0
    said = capsys.readouterr().out
    for words in (
        "39 for training, 4 for validation, 5 for test (images); 3 classes: blue, green, red",
        "trains sparsely: 158 values of 792 in 2 weights W0 + S",
        "trains as a whole: 27 numbers in 2 parameters: classifier.weight, classifier.bias",
        "frozen: 824 numbers",
        "epoch   1/1  loss",
        "examples/s",
        "adapter of",
    ):
        assert words in said, said
    run = FinetuneRun.at(settings, Path("runs"))
    assert main(["inspect", str(run.folder)]) == 0
    shown = capsys.readouterr().out
    assert "the folder of a fine-tuning" in shown
    assert "adapter/adapter.safetensors" in shown
    assert main(["inspect", str(run.best)]) == 0
    assert main(["inspect", str(run.last)]) == 0
    assert not read(Path("runs")).rows
    assert not read(Path("runs")).broken


def refusal(tmp_path, **changes):
    """A fine-tuning on images with some settings changed."""
    folder = tmp_path / "photos"
    if not folder.exists():
        write_images(folder, 4, 9)
    return image_settings(folder, **changes)


def four_outputs():
    return network(4)


def raising():
    raise ZeroDivisionError("of the user")


ERRORS = [
    (lambda t: FinetuneSettings(f"{t}/none", NETWORK), "there is no folder or table .*none"),
    (lambda t: FinetuneSettings(str(t), NETWORK), r"has no image <class>/\* or train/<class>/\*, whose name ends in"),
    (lambda t: refusal(t, test_data="x.tsv"), "put images into val/ and test/"),
    (lambda t: refusal(t, model="nothing"), "no folder 'nothing' of a network of transformers; .*package.module:func"),
    (lambda t: refusal(t, model="nothing:net"), "cannot build 'nothing:net' .No module named 'nothing'."),
    (lambda t: refusal(t, model=f"{__name__}:raising"), "it raised ZeroDivisionError: of the user"),
    (lambda t: refusal(t, model=f"{__name__}:four_outputs"), r"outputs of shape \(8, 4\), but the data have 3 classes"),
    (lambda t: refusal(t, image_size=2), "does not take these images: "),
    (lambda t: refusal(t, density=1e-6), "keeps (none|no|less)|too low|at least"),
    (lambda t: refusal(t, train=("head",)), "train='head' matches no parameter; .*classifier.weight|there are: "),
    (lambda t: refusal(t, exclude=("head",)), "exclude='head' matches no layer"),
    (lambda t: refusal(t, allocation="mine"), "unknown allocation 'mine'"),
    (lambda t: refusal(t, held_out=0.01), "12 examples are too few to keep a fraction of 0.01 for test"),
    (lambda t: refusal(t, rewire="set"), "the first rewiring would be in iteration 100"),
]


@pytest.mark.parametrize(("settings", "message"), ERRORS)
def test_mistakes_are_said_before_a_folder_is_made(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        finetune(settings(tmp_path), runtime(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


TEXT_ERRORS = [
    (lambda t, b: text_settings(t, NETWORK), "has no tokenizer; a table of texts needs a folder"),
    (lambda t, b: text_settings(t.with_name("few.tsv"), b), "all training examples are of one class, '1'"),
    (lambda t, b: text_settings(t, b, test_data=str(t.with_name("few.tsv"))), None),
    (lambda t, b: text_settings(t, b, test_data=str(t.with_name("odd.tsv"))), "the test examples have the class '7'"),
    (lambda t, b: text_settings(t.with_name("wide.tsv"), b), "no column 'text'; its first row is: a, b, label; name"),
    (lambda t, b: text_settings(t, t.parent), "is not the folder of a network of transformers: it has no config.json"),
    (lambda t, b: text_settings(t, t.parent / "empty"), "has no weights: no file in it is called"),
    (lambda t, b: text_settings(t, t.parent / "damaged"), "damaged cannot be loaded: "),
    (lambda t, b: text_settings(t, b, rewire="rigl", rewire_every=2), "RigL grows .*word_embeddings.*; exclude these"),
]


@pytest.mark.parametrize(("settings", "message"), TEXT_ERRORS)
def test_mistakes_with_texts(settings, message, table, bert, tmp_path):
    copied = tmp_path / "train.tsv"
    copied.write_bytes(table.read_bytes())
    (tmp_path / "few.tsv").write_text("good\t1\nfine\t1\n")
    (tmp_path / "odd.tsv").write_text("good\t1\nfine\t7\n")
    (tmp_path / "wide.tsv").write_text("a\tb\tlabel\n1\t2\t3\n")
    for name in ("empty", "damaged"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes((bert / "config.json").read_bytes())
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"nothing")
    chosen = settings(copied, bert)
    if message is None:  # a test table of one class is no mistake
        finetune(dataclasses.replace(chosen, epochs=1), runtime(tmp_path / "runs"))
        return
    with pytest.raises(ValueError, match=message):
        finetune(chosen, runtime(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def own_bert(bert, tmp_path):
    """A copy of a folder of transformers that a test may change."""
    return Path(shutil.copytree(bert, tmp_path / "own"))


@pytest.mark.parametrize("kind", ["BertConfig", "T5Config", "MPNetConfig", "GPT2Config"])
def test_a_folder_without_a_vocabulary_is_refused(kind, table, own_bert, tmp_path):
    """transformers makes an empty tokenizer then: of some kinds all tokens are unknown, of others there is none."""
    import transformers

    for file in own_bert.glob("token*"):
        file.unlink()
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 17}
    config = getattr(transformers, kind)(**sizes, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(own_bert)
    with pytest.raises(
        ValueError, match=r"own has no tokenizer: copy that of the network into it .*(tokenizer|merges)"
    ):
        finetune(text_settings(table, own_bert), runtime(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_tokenizer_without_files_needs_none(own_bert):
    import transformers

    for file in own_bert.iterdir():
        file.unlink()
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CanineConfig(**sizes, num_hash_buckets=16)
    transformers.CanineForSequenceClassification(config).save_pretrained(own_bert)
    takes = load_network(str(own_bert), ["0", "1"], texts=True, max_length=8).takes
    assert takes.size is None
    assert takes.encode(["no"])[0]["input_ids"][1:-1] == [ord("n"), ord("o")]


def test_texts_of_which_the_tokenizer_knows_no_word_are_refused(bert, tmp_path):
    (table := tmp_path / "greek.tsv").write_text("αβγ δε\t1\nζη\t0\n" * 20)
    for settings in (text_settings(table, bert), text_settings(write_table(tmp_path / "a.tsv"), bert, max_length=2)):
        with pytest.raises(ValueError, match="all tokens of the training texts are special or unknown"):
            finetune(settings, runtime(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_tokenizer_of_a_larger_network_is_refused(table, own_bert, tmp_path):
    import transformers

    config = transformers.AutoConfig.from_pretrained(own_bert)
    config.vocab_size = 9
    transformers.BertModel(config).save_pretrained(own_bert)
    with pytest.raises(ValueError, match=r"makes the token 16 of training texts, .* embeddings for 9 tokens"):
        finetune(text_settings(table, own_bert), runtime(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_images_for_a_network_of_texts(images, bert, tmp_path):
    with pytest.raises(ValueError, match="network of the kind 'bert', which transformers has no classifier of images"):
        finetune(FinetuneSettings(str(images), str(bert)), runtime(tmp_path / "runs"))


def test_weights_of_another_network_are_refused(table, bert, tmp_path):
    import safetensors.torch

    (folder := tmp_path / "other").mkdir()
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    safetensors.torch.save_file({"x": torch.ones(3)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"are of another network than its config\.json"):
        finetune(text_settings(table, folder), runtime(tmp_path / "runs"))


@pytest.fixture
def headless(own_bert):
    """A folder of transformers without the weights of the pooler."""
    import safetensors.torch

    state = safetensors.torch.load_file(own_bert / "model.safetensors")
    kept = {name: value for name, value in state.items() if not name.startswith("pooler")}
    safetensors.torch.save_file(kept, own_bert / "model.safetensors", {"format": "pt"})
    return own_bert


@pytest.mark.parametrize("support", ["random", "magnitude"])
def test_new_parameters_train_as_a_whole_and_are_in_the_adapter(support, table, headless, tmp_path, capsys):
    import transformers

    loud = dataclasses.replace(runtime(tmp_path / "runs"), quiet=False)
    settings = text_settings(table, headless, epochs=1, support=support)
    found = finetune(settings, loud)["parameters"]["whole"]
    assert found == 16 * 16 + 16 + 2 * 16 + 2
    names = "bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight, classifier.bias"
    assert f"not pretrained, so they train as a whole: {names}" in capsys.readouterr().out
    logits = []
    for _ in range(2):
        base = transformers.AutoModelForSequenceClassification.from_pretrained(headless, num_labels=2)
        dctps.from_pretrained(FinetuneRun.at(settings, tmp_path / "runs").adapter, base)
        logits.append(base.eval()(input_ids=torch.tensor([[2, 9, 15, 3]])).logits)
    assert torch.equal(*logits)


def test_new_parameters_that_are_excluded_are_named(table, headless, tmp_path):
    settings = text_settings(table, headless, exclude=("*pooler*",))
    with pytest.raises(
        ValueError, match=r"--exclude keeps bert\.pooler\.dense\.weight, bert\.pooler\.dense\.bias as th"
    ):
        finetune(settings, runtime(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    named = dataclasses.replace(settings, train=("classifier", "*pooler*"), exclude=("*output*",), epochs=1)
    finetune(named, runtime(tmp_path / "runs"))


def test_missing_packages_are_named(table, bert, images, tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "is_installed", lambda module: module not in ("transformers", "PIL"))
    with pytest.raises(ModuleNotFoundError, match=r"needs transformers; install it .*\[transformers\]"):
        finetune(text_settings(table, bert), runtime(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="a folder of images needs pillow"):
        finetune(image_settings(images), runtime(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"support": "best"}, "unknown support 'best'; choose one of: random, magnitude, snip"),
        ({"rewire": "dsr"}, "unknown rewire 'dsr'; choose one of: rigl, set"),
        ({"density": 0.0}, r"density must be in \(0, 1\]"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"warmup": 1.0}, "warmup must be in"),
        ({"held_out": 0.6}, "held_out must be in"),
        ({"train": "classifier"}, "setting train cannot be 'classifier'"),
        ({"epochs": 1.5}, "setting epochs cannot be 1.5"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        FinetuneSettings("x", "y", **changes)


def test_it_trains_in_one_process(images, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="fine-tuned in one process"):
        finetune(image_settings(images), runtime(tmp_path))
