"""The choice of a support for fine-tuning, and supports that move while fine-tuning."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import dctps
from dctps.nn.fine_tuned import tuned_weights
from helpers.finetuning import KINDS, Head
from helpers.networks import cnn


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(
        **sizes,
        vocab_size=40,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",  # GraSP differentiates twice
    )
    return BertForSequenceClassification(config)


def dict_batches(count=2):
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "input_ids": torch.randint(0, 40, (4, 7), generator=generator),
            "attention_mask": torch.ones(4, 7, dtype=torch.int64),
            "labels": torch.randint(0, 2, (4,), generator=generator),
        }
        for _ in range(count)
    ]


def image_batches(count=2):
    generator = torch.Generator().manual_seed(3)
    draw = [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(count)]
    return [(x, torch.arange(4)) for x in draw]


@pytest.mark.parametrize("method", list(dctps.METHODS))
def test_a_frozen_network_is_scored_as_one_that_trains(method):
    options = {"batches": image_batches(), "input_shape": (3, 8, 8), "steps": 2}
    torch.manual_seed(0)
    net = cnn()
    expected = dctps.prune(net, method, 0.1, **options)
    frozen = copy.deepcopy(net).requires_grad_(False)
    found = dctps.prune(frozen, method, 0.1, **options)
    assert dict(found) == dict(expected)
    assert not any(p.requires_grad for p in frozen.parameters())


def test_a_frozen_network_is_scored_in_sparse_layers_too():
    net = cnn().requires_grad_(False)
    found = dctps.prune(net, "iter_snip", 0.01, batches=image_batches(), steps=6)
    assert found.nnz == 54


def test_snip_on_batches_of_transformers_is_the_largest_weight_times_gradient():
    net, batches = bert().eval(), dict_batches(1)
    supports = dctps.prune(copy.deepcopy(net).requires_grad_(False), "snip", 0.02, batches=batches)
    net.train()(**batches[0]).loss.backward()
    scores = {name: (m.weight * m.weight.grad).abs() for name, m in net.named_modules() if isinstance(m, nn.Linear)}
    threshold = torch.cat([s.flatten() for s in scores.values()]).sort(descending=True).values[supports.nnz - 1]
    for name, support in supports.items():
        assert torch.equal(support.mask(), scores[name] >= threshold)
    tuned = dctps.sparsify(net, supports=supports, offset="pretrained")
    assert dctps.report(tuned).nnz == supports.nnz


def test_any_loss_and_pairs_serve_a_network_of_transformers():
    net, batches = bert(), dict_batches()
    by_name = dctps.prune(net, "snip", 0.02, batches=batches)
    own = dctps.prune(net, "snip", 0.02, batches=batches, loss=lambda output, labels: output.loss)
    pairs = [((b["input_ids"], b["attention_mask"]), b["labels"]) for b in batches]
    given = dctps.prune(net, "snip", 0.02, batches=pairs, loss=lambda out, labels: F.cross_entropy(out.logits, labels))
    assert dict(by_name) == dict(own) == dict(given) == dict(dctps.prune(net, "snip", 0.02, batches=pairs))
    assert dctps.prune(net, "grasp", 0.02, batches=batches).nnz == by_name.nnz
    with pytest.raises(ValueError, match="give input_shape"):
        dctps.prune(net, "synflow", 0.02, batches=batches)
    with pytest.raises(ValueError, match="labels are an integer tensor"):
        dctps.prune(net, "snip", 0.02, batches=[{"input_ids": batches[0]["input_ids"]}])


def places_of(net):
    return {name: weight.part.positions.tolist() for name, weight in tuned_weights(net).items()}


def trained(net, rewire, batches, steps):
    for step in range(steps):
        x, labels = batches[step % len(batches)]
        rewire.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        rewire.step()


@pytest.mark.parametrize("method", [dctps.RigL, dctps.SET])
def test_rewiring_moves_the_sparse_parts_and_leaves_the_base(method):
    net = dctps.sparsify(cnn(), 0.05, offset="pretrained", train="norms")
    before = places_of(net)
    bases = {name: w.base.detach().clone() for name, w in tuned_weights(net).items()}
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-2)
    rewire = method(net, optimizer, stop=20, every=4, drop_fraction=0.5)
    trained(net, rewire, image_batches(), 12)
    for name, weight in tuned_weights(net).items():
        assert weight.part.positions.tolist() != before[name]
        assert weight.part.nnz == len(before[name])
        assert torch.equal(weight.base, bases[name])
    assert rewire.updates == 3


def test_rigl_grows_where_the_dense_gradient_is_largest():
    torch.manual_seed(1)
    net = dctps.sparsify(nn.Sequential(nn.Linear(12, 10)), 0.2, offset="pretrained").double()
    dense = nn.Sequential(nn.Linear(12, 10)).double()
    x, labels = torch.randn(6, 12, dtype=torch.float64), torch.arange(6)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    rewire = dctps.RigL(net, optimizer, stop=10, every=1, drop_fraction=0.5)
    part = net[0].sparse_part["weight"]
    kept_before = part.positions.clone()
    dense.load_state_dict(dctps.densify(copy.deepcopy(net)).state_dict())
    F.cross_entropy(net(x), labels).backward()
    F.cross_entropy(dense(x), labels).backward()
    rewire.step()
    grown = [p for p in part.positions.tolist() if p not in kept_before.tolist()]
    gradient = dense[0].weight.grad.flatten().abs()
    outside = [p for p in range(120) if p not in kept_before.tolist()]
    best = sorted(outside, key=lambda p: -gradient[p])[: len(grown)]
    assert grown
    assert sorted(grown) == sorted(best)


@pytest.mark.parametrize("method", [dctps.RigL, dctps.SET])
@pytest.mark.parametrize("with_closure", [False, True])
def test_an_optimiser_whose_steps_were_taken_over_does_what_the_rewiring_does(method, with_closure):
    torch.manual_seed(0)
    nets = [dctps.sparsify(cnn(), 0.05, offset="pretrained")]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-2) for net in nets]
    options = {"stop": 20, "every": 4, "drop_fraction": 0.5}
    rewire, other = (method(net, optimizer, **options) for net, optimizer in zip(nets, optimizers, strict=True))
    assert other.take_over() is other
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 5) for optimizer in optimizers]
    for x, labels in image_batches() * 5:
        for net, stepper, schedule in zip(nets, (rewire, optimizers[1]), schedules, strict=True):

            def closure(net=net, stepper=stepper, x=x, labels=labels):
                stepper.zero_grad()
                loss = F.cross_entropy(net(x), labels)
                loss.backward()
                return loss

            stepper.step(closure) if with_closure else (closure(), stepper.step())
            schedule.step()
    assert places_of(nets[0]) == places_of(nets[1])
    assert other.updates == rewire.updates == 2
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_one_rewiring_takes_over_an_optimiser_and_its_state_goes_with_it():
    net = dctps.sparsify(cnn(), 0.05, offset="pretrained")
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-2)
    plain = optimizer.state_dict()
    rewire = dctps.SET(net, optimizer, stop=20, every=4).take_over()
    with pytest.raises(RuntimeError, match="already"):
        rewire.take_over()
    with pytest.raises(RuntimeError, match="another rewiring"):
        dctps.SET(net, optimizer, stop=20, every=4).take_over()
    with pytest.raises(ValueError, match="without that of a rewiring"):
        optimizer.load_state_dict(plain)
    state = optimizer.state_dict()
    state["rewiring"]["iteration"] = 3
    optimizer.load_state_dict(state)
    assert rewire.iteration == 3


@pytest.mark.parametrize("method", [dctps.RigL, dctps.SET, dctps.DSR])
def test_a_state_that_the_optimiser_or_the_rewiring_refuses_changes_neither(method):
    net = dctps.sparsify(cnn(), 0.05)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    rewire = method(net, optimizer, stop=20, every=2).take_over()
    state = copy.deepcopy(optimizer.state_dict())
    state["rewiring"]["iteration"] = 3
    for change, message in (
        (lambda s: s["param_groups"][0]["params"].append(99), "doesn't match the size of"),
        (lambda s: s["rewiring"].update(method="other"), "belongs to a rewiring with method='other'"),
        (lambda s: s["rewiring"]["memory"].update(other={}), "here is no layer 'other' to rewire"),
    ):
        wrong, before = copy.deepcopy(state), str((rewire, optimizer.state_dict(), places_of(net)))
        change(wrong)
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(wrong)
        assert str((rewire, optimizer.state_dict(), places_of(net))) == before
    optimizer.load_state_dict(state)
    assert rewire.iteration == 3


@pytest.mark.parametrize("kind", ["Embedding", "packed attention", "ConvTranspose2d", "a tied weight"])
def test_rigl_refuses_weights_that_do_not_show_their_gradient_and_set_moves_them(kind):
    layer, x = KINDS[kind](3, 4)
    net = dctps.sparsify(nn.Sequential(layer), 0.5, offset="pretrained")
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    with pytest.raises(ValueError, match="do not show"):
        dctps.RigL(net, optimizer, stop=10, every=1)
    before = places_of(net)
    rewire = dctps.SET(net, optimizer, stop=10, every=1, drop_fraction=0.5)
    for _ in range(2):
        rewire.zero_grad()
        net(x).square().sum().backward()
        rewire.step()
    assert places_of(net) != before


def test_set_density_and_param_groups_find_the_sparse_parts():
    net = dctps.sparsify(Head(9, 4), 0.5, offset="pretrained")
    optimizer = torch.optim.AdamW(dctps.param_groups(net, 0.01))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]
    dctps.set_density(net, 0.25, optimizer)
    assert dctps.report(net).nnz == 9
