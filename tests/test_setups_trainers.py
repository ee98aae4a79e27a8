"""Trainers of others. The first sentence of each test is a row of the table in docs/compatibility.md."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dctps
from helpers.setups import assert_same_network, batch, library, network, required

pytestmark = [required, pytest.mark.process]


def loader():
    return DataLoader(TensorDataset(*batch(16)), batch_size=4)


def lightning_module(lightning):
    class Module(lightning.LightningModule):
        """A sparse network that trains with RigL, as Lightning's users write it."""

        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(dctps.param_groups(self.net, weight_decay=0.01), lr=1e-2)

    return Module()


def test_lightning(tmp_path):
    """Lightning's Trainer, with a checkpoint and a resumption: works."""
    lightning = library("lightning")
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    straight = lightning_module(lightning)
    lightning.Trainer(max_epochs=4, enable_checkpointing=False, **options).fit(straight, loader())
    first = lightning_module(lightning)
    trainer = lightning.Trainer(max_epochs=2, default_root_dir=tmp_path, **options)
    trainer.fit(first, loader())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = lightning_module(lightning)
    lightning.Trainer(max_epochs=4, enable_checkpointing=False, **options).fit(
        second, loader(), ckpt_path=tmp_path / "half.ckpt"
    )
    assert_same_network(straight.net, second.net)


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


class Texts(torch.utils.data.Dataset):
    """Sixteen texts of seven words, and whether their first word is even."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        words = torch.randint(50, (7,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words[0] % 2}


def hf_trainer(folder, **options):
    transformers = library("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    net = dctps.sparsify(transformers.BertForSequenceClassification(config), 0.05)
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=8, save_steps=4, per_device_train_batch_size=4, report_to=[], use_cpu=True, **options
    )
    optimizer = torch.optim.AdamW(dctps.param_groups(net, weight_decay=0.01), lr=1e-2)
    return transformers.Trainer(net, arguments, train_dataset=Texts(), optimizers=(optimizer, None))


def test_hf_trainer(tmp_path):
    """The Trainer of transformers, with a checkpoint and a resumption: works."""
    library("accelerate")
    straight, again = hf_trainer(tmp_path / "a"), hf_trainer(tmp_path / "b")
    straight.train()
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    for (name, a), b in zip(straight.model.state_dict().items(), again.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)


def test_default_decay_of_the_hf_trainer(tmp_path):
    """The weight decay of the Trainer of transformers: also decays alpha; pass an optimiser of `dctps.param_groups`."""
    trainer = hf_trainer(tmp_path, weight_decay=0.1)
    trainer.optimizer = None
    decayed, _ = trainer.create_optimizer().param_groups
    alphas = {id(p) for name, p in trainer.model.named_parameters() if name.endswith("alpha")}
    assert alphas & {id(p) for p in decayed["params"]}
    ours, _ = dctps.param_groups(trainer.model, weight_decay=0.1)
    assert not alphas & {id(p) for p in ours["params"]}
