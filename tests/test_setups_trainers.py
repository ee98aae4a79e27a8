"""Trainers of others. The first sentence of each test is a row of the table in docs/compatibility.md."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dctps
from dctps.nn.fine_tuned import tuned_weights
from helpers.setups import assert_same_network, batch, library, network, required

pytestmark = [required, pytest.mark.process]


FINE_TUNING = {"density": 0.1, "offset": "pretrained", "train": "norms"}


def rewired(net):
    """Return an optimiser of what trains in a network; its steps move weights from time to time."""
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    dctps.RigL(net, optimizer, stop=14, every=3, drop_fraction=0.5).take_over()
    return optimizer


def assert_moved(net, first):
    """Check that weights have moved since the network was `first`, and that W0 is what it was."""
    before, now = tuned_weights(first), tuned_weights(net)
    assert any(not torch.equal(before[name].part.positions, now[name].part.positions) for name in now)
    assert all(torch.equal(before[name].base, now[name].base) for name in now)


def loader():
    return DataLoader(TensorDataset(*batch(16)), batch_size=4)


def lightning_module(lightning, **options):
    class Module(lightning.LightningModule):
        """A network, as Lightning's users write it; it is sparse, or fine-tuned with RigL where there are options."""

        def __init__(self):
            super().__init__()
            self.net = network(**options)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            if options:
                return rewired(self.net)
            return torch.optim.Adam(dctps.param_groups(self.net, weight_decay=0.01), lr=1e-2)

    return Module()


def lightning_resumed(folder, **options):
    """Return the modules of a training, and of one that went on from a checkpoint at its half."""
    lightning = library("lightning")
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    straight, first, second = (lightning_module(lightning, **options) for _ in range(3))
    lightning.Trainer(max_epochs=4, enable_checkpointing=False, **quiet).fit(straight, loader())
    trainer = lightning.Trainer(max_epochs=2, default_root_dir=folder, **quiet)
    trainer.fit(first, loader())
    trainer.save_checkpoint(folder / "half.ckpt")
    trainer = lightning.Trainer(max_epochs=4, enable_checkpointing=False, **quiet)
    trainer.fit(second, loader(), ckpt_path=folder / "half.ckpt")
    return straight.net, second.net


def test_lightning(tmp_path):
    """Lightning's Trainer, with a checkpoint and a resumption: works."""
    assert_same_network(*lightning_resumed(tmp_path))


def test_lightning_fine_tuning(tmp_path):
    """Lightning's Trainer, fine-tuning with RigL, a checkpoint and a resumption: works, by `take_over`."""
    straight, resumed = lightning_resumed(tmp_path, **FINE_TUNING)
    assert_same_network(straight, resumed)
    assert_moved(straight, network(**FINE_TUNING))


def test_accelerate(tmp_path):
    """accelerate (`prepare`, `save_state`, `load_state`, `save_model`): works; another offset is refused."""
    accelerate = library("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)

    def prepared():
        net = network()
        return accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=1e-2), loader())

    net, optimizer, batches = prepared()
    for x, y in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(net(x), y))
        optimizer.step()
    accelerator.save_state(tmp_path / "state", safe_serialization=True)
    accelerator.save_model(net, tmp_path / "model")
    expected = accelerator.unwrap_model(net)
    other = network(seed=1)
    accelerate.load_checkpoint_in_model(other, tmp_path / "model")
    assert_same_network(other, expected)
    with torch.no_grad():
        expected[0].values.zero_()
    accelerator.load_state(tmp_path / "state")
    assert_same_network(other, expected)
    from safetensors.torch import load_file

    with pytest.raises(RuntimeError, match="belongs to a layer with"):
        network(offset="dst").load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))


def test_accelerate_fine_tuning(tmp_path):
    """accelerate, fine-tuning with RigL, `save_state` and `load_state`: works, by `take_over`."""
    accelerator = library("accelerate").Accelerator(cpu=True)

    def trained(epochs, start=None):
        net = network(**FINE_TUNING)
        prepared, optimizer, batches = accelerator.prepare(net, rewired(net), loader())
        if start is not None:
            accelerator.load_state(start)
        for epoch in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(prepared(x), y))
                optimizer.step()
            if epoch == 0 and start is None:
                accelerator.save_state(tmp_path / "one")
        for held in (accelerator._models, accelerator._optimizers, accelerator._dataloaders):
            held.clear()  # it saves and loads everything that it has ever prepared
        return net

    straight, again = trained(3), trained(2, tmp_path / "one")
    assert_same_network(straight, again)
    assert_moved(straight, network(**FINE_TUNING))


class Texts(torch.utils.data.Dataset):
    """Sixteen texts of seven words, and whether their first word is even."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        words = torch.randint(50, (7,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words[0] % 2}


def bert(**options):
    """Return a small classifier of texts that `sparsify` made sparse by these options."""
    transformers = library("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    return dctps.sparsify(transformers.BertForSequenceClassification(config), **options)


def hf_trainer(folder, net=None, optimizer=None, **options):
    transformers = library("transformers")
    net = net or bert(density=0.05)
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=8, save_steps=4, per_device_train_batch_size=4, report_to=[], use_cpu=True, **options
    )
    optimizer = optimizer or torch.optim.AdamW(dctps.param_groups(net, weight_decay=0.01), lr=1e-2)
    return transformers.Trainer(net, arguments, train_dataset=Texts(), optimizers=(optimizer, None))


def assert_resumes(straight, again, folder):
    """Check that a training which goes on from the checkpoint of another at its half ends with the same network."""
    straight.train()
    again.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    for (name, a), b in zip(straight.model.state_dict().items(), again.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)


def test_hf_trainer(tmp_path):
    """The Trainer of transformers, with a checkpoint and a resumption: works."""
    library("accelerate")
    assert_resumes(hf_trainer(tmp_path / "a"), hf_trainer(tmp_path / "b"), tmp_path / "a")


def test_hf_trainer_fine_tuning(tmp_path):
    """The Trainer of transformers, fine-tuning with RigL, a checkpoint and a resumption: works, by `take_over`."""
    library("accelerate")
    options = {"density": 0.05, "offset": "pretrained", "train": "classifier", "exclude": nn.Embedding}

    def trainer(folder):
        net = bert(**options)
        return hf_trainer(folder, net, rewired(net))

    straight = trainer(tmp_path / "a")
    assert_resumes(straight, trainer(tmp_path / "b"), tmp_path / "a")
    assert_moved(straight.model, bert(**options))


def test_default_decay_of_the_hf_trainer(tmp_path):
    """The weight decay of the Trainer of transformers: also decays alpha; pass an optimiser of `dctps.param_groups`."""
    trainer = hf_trainer(tmp_path, weight_decay=0.1)
    trainer.optimizer = None
    decayed, _ = trainer.create_optimizer().param_groups
    alphas = {id(p) for name, p in trainer.model.named_parameters() if name.endswith("alpha")}
    assert alphas & {id(p) for p in decayed["params"]}
    ours, _ = dctps.param_groups(trainer.model, weight_decay=0.1)
    assert not alphas & {id(p) for p in ours["params"]}
