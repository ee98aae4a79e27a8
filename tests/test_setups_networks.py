"""Networks of others. The first sentence of each test is a row of the table in docs/compatibility.md."""

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

import dctps
from helpers.setups import library, required


def left(net):
    """Return the reasons why modules stayed dense, by name."""
    return dict(dctps.report(net).left_dense)


def step(net, *inputs):
    """Take a step with a loss of the outputs, and return the outputs."""
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    out = net(*inputs)
    out = out[0] if isinstance(out, tuple) else getattr(out, "logits", out)
    out.square().mean().backward()
    optimizer.step()
    return out


def transformer(name, **config):
    """Return a small network of transformers without pretrained weights."""
    transformers = library("transformers")
    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config.pop("config"))(**config))


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@required
def test_bert():
    """BERT (transformers): works; attention, feed-forward and classifier are converted, embeddings stay dense."""
    net = transformer("BertForSequenceClassification", config="BertConfig", vocab_size=50, **SMALL)
    dctps.sparsify(net, 0.01)
    assert len(dctps.report(net).layers) == 2 * 6 + 2
    assert all("embeddings" in name for name in left(net))
    step(net, torch.randint(50, (2, 7)))


@required
def test_vit():
    """ViT (transformers): works; the convolution of the patches is converted, too."""
    net = transformer("ViTForImageClassification", config="ViTConfig", image_size=16, patch_size=4, **SMALL)
    dctps.sparsify(net, 0.01)
    assert any("patch" in row.name for row in dctps.report(net).layers)
    step(net, torch.randn(2, 3, 16, 16))


@required
def test_gpt2():
    """GPT-2 (transformers): refused; its Conv1D layers are not those of torch, and its head is a tied weight."""
    net = transformer(
        "GPT2LMHeadModel", config="GPT2Config", n_embd=32, n_layer=2, n_head=2, vocab_size=50, n_positions=16
    )
    with pytest.raises(ValueError, match="Conv1D is not a linear layer or a convolution") as caught:
        dctps.sparsify(net, 0.01)
    assert "lm_head: its weight is tied: transformer.wte.weight = lm_head.weight" in str(caught.value)


@required
def test_save_pretrained(tmp_path):
    """`save_pretrained` and back (transformers 5): works; other programs import `dctps.nn.pretrained` first."""
    transformers = library("transformers")
    net = transformer("BertForSequenceClassification", config="BertConfig", vocab_size=50, **SMALL)
    dctps.sparsify(net, 0.05, offset="dct_signed", seed=3)
    step(net, torch.randint(50, (2, 7)))
    net.save_pretrained(tmp_path / "net")
    x = torch.randint(50, (2, 7))
    other = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "net")
    assert torch.equal(other(x).logits, net.eval()(x).logits)
    step(other.train(), x)
    assert not hasattr(dctps.densify(other).config, "quantization_config")


@required
def test_pretrained_of_another_shape(tmp_path):
    """`from_pretrained` into a network of other layers: refused."""
    transformers = library("transformers")
    net = transformer("BertForSequenceClassification", config="BertConfig", vocab_size=50, **SMALL)
    dctps.sparsify(net, 0.05).save_pretrained(tmp_path / "net")
    config = transformers.BertConfig(vocab_size=50, **{**SMALL, "num_hidden_layers": 1})
    config.quantization_config = net.config.quantization_config
    with pytest.raises(ValueError, match=r"hold a sparse layer 'bert.encoder.layer.1"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / "net", config=config)


@required
def test_lora():
    """LoRA of peft: refused; merge it first, exclude it (`exclude="*lora_*"`) or ask for it (`adapters=True`)."""
    peft = library("peft")
    net = peft.get_peft_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), peft.LoraConfig(target_modules=["0"]))
    with pytest.raises(ValueError, match="belong to adapters of peft"):
        dctps.sparsify(net, 0.5)
    x = torch.randn(3, 8)
    expected = net(x)
    merged = dctps.sparsify(net.merge_and_unload().requires_grad_(), 1.0, offset=None)
    torch.testing.assert_close(merged(x), expected)


def test_quantised():
    """Quantised layers (`quantize_dynamic`, weights that are tensors of another class): left dense, with the reason."""
    net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), {nn.Linear})
    with pytest.raises(ValueError, match="no layer to convert"):
        dctps.sparsify(net, 0.5)


class UNet(nn.Module):
    """A small U-Net: a step down, a step up by a transposed convolution, and a connection between the two."""

    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(11, 1, 3, padding=1)

    def forward(self, x):
        return self.out(torch.cat([x, self.up(self.middle(self.down(x)).relu())], 1))


def test_unet():
    """A U-Net: works; its transposed convolutions stay dense."""
    net = dctps.sparsify(UNet(), 0.1)
    assert left(net) == {"up": "a transposed convolution (all_kinds=True converts it)"}
    assert step(net, torch.randn(2, 3, 8, 8)).shape == (2, 1, 8, 8)


class Tagger(nn.Module):
    """An embedding, an LSTM and a linear layer."""

    def __init__(self):
        super().__init__()
        self.table, self.lstm, self.out = nn.Embedding(20, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.lstm(self.table(x))[0])


def test_lstm():
    """An LSTM: works; the LSTM and embeddings stay dense, linear layers are converted."""
    net = dctps.sparsify(Tagger(), 0.1)
    assert left(net).keys() == {"table", "lstm"}
    step(net, torch.randint(20, (2, 5)))


def test_attention():
    """`nn.MultiheadAttention`, `nn.TransformerEncoder`: works; attention stays dense, the report gives its share."""
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    dctps.sparsify(net, 0.01)
    assert any("self_attn" in name for name in left(net))
    assert dctps.report(net).sizes.trainable > 0.4 * dctps.report(net).sizes.parameters
    step(net, torch.randn(2, 5, 16))
    net.eval()
    with torch.no_grad():
        net(torch.randn(2, 5, 16))  # the fast path of torch, which reads the weights itself, is not taken


def test_tied_weights():
    """Tied weights: left dense, with the reason."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    net[1].weight = net[0].weight
    dctps.sparsify(net, 0.5)
    assert left(net) == dict.fromkeys("01", "its weight is tied: 0.weight = 1.weight")


def test_computed_weights():
    """Weight norm, spectral norm and masks of `torch.nn.utils.prune`: left dense, with the reason."""
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    nn.utils.parametrizations.weight_norm(net[0])
    nn.utils.parametrizations.spectral_norm(net[1])
    nn.utils.prune.random_unstructured(net[2], "weight", 0.5)
    dctps.sparsify(net, 0.5)
    assert left(net).keys() == {"0", "1", "2"}
    assert all("computed from other parameters" in reason or "Parametrized" in reason for reason in left(net).values())


class Standardised(nn.Conv2d):
    """A convolution that standardises its weight."""

    def forward(self, x):
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return nn.functional.conv2d(x, weight, self.bias)


def test_subclasses():
    """Subclasses of torch's layers: left dense, with the reason, because they may compute something else."""
    net = dctps.sparsify(nn.Sequential(Standardised(3, 4, 3), nn.Conv2d(4, 4, 3)), 0.5)
    assert left(net) == {
        "0": "Standardised, a subclass of Conv2d that may compute something else (all_kinds=True converts it)"
    }


def test_lazy_layers():
    """Lazy layers: left dense until the network has run once on an example."""
    net = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))
    assert "run the network once" in left(dctps.sparsify(net, 0.5))["0"]
    net = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))
    net(torch.randn(1, 5))
    assert len(dctps.report(dctps.sparsify(net, 0.5)).layers) == 2


def test_foreign_initialisation():
    """`nn.init` on `layer.weight`, `layer.weight = ...`, `layer.weight.data.mul_()`: refused; they would be lost."""
    net = dctps.sparsify(nn.Sequential(nn.Linear(8, 8)), 0.5)
    with pytest.raises(RuntimeError, match=r"change layer\.values"):
        net.apply(lambda m: nn.init.xavier_uniform_(m.weight) if hasattr(m, "weight") else None)
    with pytest.raises(AttributeError, match=r"change layer\.values"):
        net[0].weight = nn.Parameter(torch.zeros(8, 8))
