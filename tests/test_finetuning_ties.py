"""Fine-tuned weights that several layers share: one S with one name, in copies, states and the tools of others."""

import copy
import pickle

import pytest
import torch
from torch import nn

import dctps
from dctps.nn.fine_tuned import FineTuned
from dctps.nn.finetune import load_trained_state, trained_state
from helpers.finetuning import Head, shaken
from helpers.setups import library, required
from helpers.tolerances import assert_close

PRETRAINED = {"offset": "pretrained"}


def tied():
    return shaken(dctps.sparsify(Head(9, 4), 0.5, **PRETRAINED))


def assert_shared(net):
    assert net.table.sparse_part["weight"] is net.last.sparse_part["weight"]
    assert [name for name, _ in net.named_parameters(remove_duplicate=False) if "sparse_part" in name] == [
        "table.sparse_part.weight.values"
    ]


def test_a_shared_part_has_one_name():
    net = tied()
    assert_shared(net)
    assert list(net.last.sparse_part) == list(net.last.sparse_part.keys()) == ["weight"]
    assert list(net.last.sparse_part.values()) == [net.table.sparse_part["weight"]]
    assert "weight" in net.last.sparse_part
    assert len(net.last.sparse_part) == 1
    assert not any(name.startswith("last.sparse_part") for name in net.state_dict())


@pytest.mark.parametrize(
    "again",
    [
        copy.deepcopy,
        lambda net: pickle.loads(pickle.dumps(net)),
        lambda net: net.double().float(),
        lambda net: dctps.unmerge(dctps.densify(net)),
        lambda net: dctps.Adapter.of(net).attach(net),
        lambda net: dctps.detach(net).attach(net),
    ],
)
def test_a_shared_part_stays_one(again):
    net, x = tied(), torch.arange(9)
    y = net(x)
    other = again(net)
    assert_shared(other)
    assert torch.equal(other(x), y)
    other(x).square().sum().backward()
    assert other.table.sparse_part["weight"].values.grad.abs().sum() > 0


def test_a_shared_part_in_a_compiled_network():
    net, x = tied(), torch.arange(9)
    y = net(x)
    assert_close(torch.compile(net, backend="aot_eager")(x), y)


@pytest.mark.parametrize("load", [lambda net, state: net.load_state_dict(state), load_trained_state])
def test_states_of_earlier_versions_have_both_names(load):
    net, other, x = tied(), dctps.sparsify(Head(9, 4), 0.5, **PRETRAINED), torch.arange(9)
    state = trained_state(net) if load is load_trained_state else net.state_dict()
    state |= {name.replace("table.", "last."): value for name, value in state.items() if "sparse_part" in name}
    assert "last.sparse_part.weight.values" in state
    load(other, state)
    assert torch.equal(other.table.sparse_part["weight"].values, net.table.sparse_part["weight"].values)
    if load is not load_trained_state:
        assert torch.equal(other(x), net(x))
    with pytest.raises((ValueError, RuntimeError), match="surprise"):
        load(other, state | {"last.surprise": torch.zeros(1)})


# --- the tools of others ---------------------------------------------------------------------------------------------


def gpt():
    """Return a small GPT-2, fine-tuned, whose table is its head."""
    transformers = library("transformers")
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 16}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return dctps.sparsify(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **still)), 0.05, **PRETRAINED)


def words(count=3):
    drawn = torch.randint(50, (count, 7), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in drawn]


class Stack(torch.utils.data.Dataset):
    """Sixteen rows of words."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return words(16)[index]


@required
def test_the_trainer_of_transformers_resumes_a_network_with_a_tied_weight(tmp_path):
    transformers = library("transformers")
    library("accelerate")

    def trainer(folder):
        net = gpt()
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
        dctps.SET(net, optimizer, stop=100, every=3).take_over()
        options = {"max_steps": 8, "save_steps": 4, "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True}
        arguments = transformers.TrainingArguments(str(folder), **options)
        return transformers.Trainer(net, arguments, train_dataset=Stack(), optimizers=(optimizer, None))

    straight, again = trainer(tmp_path / "a"), trainer(tmp_path / "b")
    straight.train()
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    for (name, a), b in zip(straight.model.state_dict().items(), again.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)


@required
def test_transformers_saves_and_ties_a_network_with_a_tied_weight(tmp_path):
    net, ids = shaken(gpt()), words()[0]["input_ids"][None]
    logits = net(ids).logits
    net.save_pretrained(tmp_path)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            net.tie_weights()
    assert torch.equal(net(ids).logits, logits)
    assert net.lm_head.sparse_part["weight"] is net.transformer.wte.sparse_part["weight"]
    assert net.lm_head._parameters["weight"] is net.transformer.wte._parameters["weight"]


@required
def test_accelerate_saves_and_loads_a_network_with_a_tied_weight(tmp_path):
    accelerator = library("accelerate").Accelerator(cpu=True)
    net, x = tied(), torch.arange(9)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    net, optimizer = accelerator.prepare(net, optimizer)
    y = net(x)
    accelerator.save_state(tmp_path)
    accelerator.backward(net(x).square().sum())
    optimizer.step()
    assert not torch.equal(net(x), y)
    accelerator.load_state(tmp_path)
    assert torch.equal(net(x), y)


# --- what would replace W0 -------------------------------------------------------------------------------------------


def test_a_new_parameter_in_the_place_of_a_base_is_refused():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    base, x = net[0].weight, torch.randn(2, 3, 6, 6)
    shaken(dctps.sparsify(net, 0.3, **PRETRAINED))
    y = net(x)
    with pytest.raises(RuntimeError, match="'weight' of this Conv2d cannot be replaced"):
        net[0].weight = nn.Parameter(torch.zeros(4, 3, 3, 3))
    with pytest.raises(RuntimeError, match="cannot be replaced"):
        nn.utils.fusion.fuse_conv_bn_eval(net[0], net[1])
    net[0].weight = base
    net[0].bias = nn.Parameter(net[0].bias.detach().clone())
    assert torch.equal(net(x), y)


def test_what_torch_itself_does_with_parameters_goes_on_working():
    net, x = tied(), torch.arange(9)
    y, state = net(x), {name: value.clone() for name, value in net.state_dict().items()}
    other = dctps.sparsify(Head(9, 4), 0.5, **PRETRAINED)
    other.load_state_dict(state, assign=True)
    assert torch.equal(other(x), y)
    assert other.table._parameters["weight"].data_ptr() == state["table.weight"].data_ptr()
    assert torch.equal(torch.func.functional_call(net, dict(net.named_parameters()), x), y)
    with torch.device("meta"):
        assert isinstance(copy.deepcopy(net).to("meta").table, FineTuned)
