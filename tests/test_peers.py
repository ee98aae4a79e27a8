"""Adapters in other people's formats: folders for hubs, SHiRA of peft, masks and sparse tensors of torch."""

import copy
import json

import peft
import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import dctps
from dctps import CheckpointError, Support
from dctps.nn.fine_tuned import FineTuned, tuned_weights
from helpers.finetuning import shaken
from helpers.networks import assert_unchanged, cnn, snapshot


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=60,
        max_position_embeddings=16,
    )
    return BertForSequenceClassification(config).eval()


TOKENS = torch.randint(0, 60, (3, 9), generator=torch.Generator().manual_seed(1))


def tuned_bert(**options):
    settings = {"exclude": nn.Embedding, "train": "classifier", **options}
    return shaken(dctps.sparsify(bert(), 0.05, offset="pretrained", **settings))


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_saved_and_loaded_without_a_network(tmp_path):
    net = tuned_bert()
    dctps.save_pretrained(net, tmp_path / "new" / "adapter", base="user/bert")
    folder = tmp_path / "new" / "adapter"
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "adapter.safetensors", "config.json"]
    config = json.loads((folder / "config.json").read_text())
    assert config["base_model_name_or_path"] == "user/bert"
    assert config["nnz"] == dctps.report(net).nnz
    card = (folder / "README.md").read_text()
    assert card.startswith('---\nlibrary_name: dctps\nbase_model: "user/bert"\n')
    assert "trains as a whole: 66 numbers" in card
    base = bert()
    assert dctps.from_pretrained(folder, base) is base
    assert torch.equal(base(TOKENS).logits, net(TOKENS).logits)


def test_folders_that_are_none_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a name on the hub"):
        dctps.from_pretrained(tmp_path / "nothing", bert())
    with pytest.raises(CheckpointError, match=r"no config.json"):
        dctps.from_pretrained(tmp_path, bert())
    (tmp_path / "config.json").write_text('{"library_name": "other"}')
    with pytest.raises(CheckpointError, match="not the configuration of an adapter"):
        dctps.from_pretrained(tmp_path, bert())
    dctps.save_pretrained(tuned_bert(), tmp_path)
    net = cnn()
    before = snapshot(net)
    with pytest.raises(CheckpointError, match="does not fit this network"):
        dctps.from_pretrained(tmp_path, net)
    assert_unchanged(net, before)


# --- SHiRA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", ["classifier", ("classifier", "bert.embeddings.LayerNorm")])
def test_peft_loads_what_we_export(train, tmp_path):
    net = tuned_bert(train=train)
    dctps.export_shira(net, tmp_path)
    theirs = peft.PeftModel.from_pretrained(bert(), tmp_path).eval()
    torch.testing.assert_close(theirs(TOKENS).logits, net(TOKENS).logits, rtol=1e-6, atol=1e-6)
    back = dctps.import_shira(tmp_path, bert())
    assert torch.equal(back(TOKENS).logits, net(TOKENS).logits)
    for name, weight in tuned_weights(net).items():
        assert tuned_weights(back)[name].part.support == weight.part.support


def test_we_load_what_peft_saves(tmp_path):
    config = peft.ShiraConfig(r=2, target_modules=["query", "dense"], random_seed=3, modules_to_save=["classifier"])
    theirs = shaken(peft.get_peft_model(bert(), config)).eval()
    theirs.save_pretrained(tmp_path)
    ours = dctps.import_shira(tmp_path, bert())
    assert not torch.equal(ours(TOKENS).logits, bert()(TOKENS).logits)
    torch.testing.assert_close(ours(TOKENS).logits, theirs(TOKENS).logits, rtol=1e-6, atol=1e-6)
    dctps.export_shira(ours, tmp_path / "again")
    again = peft.PeftModel.from_pretrained(bert(), tmp_path / "again").eval()
    torch.testing.assert_close(again(TOKENS).logits, theirs(TOKENS).logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ()}, "is of a Embedding, and SHiRA"),
        ({"train_alpha": True}, "SHiRA has no alpha"),
        ({"train": ("classifier", "*.query.bias")}, "the bias of '.*query' trains"),
        ({"train": "classifier.weight"}, "'classifier.bias' does not train"),
        ({"train": ()}, "'classifier' has 64 places, but SHiRA's r = 2"),
    ],
)
def test_what_shira_cannot_express_is_refused_before_anything_is_written(options, message, tmp_path):
    net = dctps.sparsify(
        bert(), 0.05, offset="pretrained", **{"exclude": nn.Embedding, "train": "classifier", **options}
    )
    with pytest.raises(ValueError, match=message):
        dctps.export_shira(net, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_adapters_of_peft_that_do_not_fit_are_refused(tmp_path):
    dctps.export_shira(tuned_bert(), tmp_path)
    net = cnn()
    before = snapshot(net)
    with pytest.raises(CheckpointError, match="does not fit"):
        dctps.import_shira(tmp_path, net)
    assert_unchanged(net, before)
    lora = peft.get_peft_model(bert(), peft.LoraConfig(r=2, target_modules=["query"]))
    lora.save_pretrained(tmp_path / "lora")
    with pytest.raises(CheckpointError, match="no values of SHiRA"):
        dctps.import_shira(tmp_path / "lora", bert())
    (tmp_path / "adapter_model.safetensors").write_bytes((tmp_path / "adapter_model.safetensors").read_bytes()[:900])
    plain = bert()
    with pytest.raises(CheckpointError, match="not the folder of an adapter"):
        dctps.import_shira(tmp_path, plain)
    assert not any(isinstance(m, FineTuned) for m in plain.modules())


# --- masks and sparse tensors ----------------------------------------------------------------------------------------


def test_masks_of_torch_become_supports():
    net = cnn()
    masked = copy.deepcopy(net)
    torch_prune.global_unstructured(
        [(masked[0], "weight"), (masked[6], "weight")], torch_prune.L1Unstructured, amount=0.9
    )
    supports = dctps.masked_supports(masked)
    assert list(supports) == ["0", "6"]
    assert torch.equal(supports["6"].mask(), masked[6].weight_mask.bool())
    tuned = dctps.sparsify(net, supports=supports, offset="pretrained")
    assert dctps.report(tuned).nnz == sum(int(masked[i].weight_mask.sum()) for i in (0, 6))
    with pytest.raises(ValueError, match="no layer of this network has a mask"):
        dctps.masked_supports(cnn())


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensors_become_supports(layout):
    support = Support.sample((5, 7), 9, seed=2)
    dense = support.mask().float()
    sparse = dense.to_sparse(layout=layout)
    assert Support.from_sparse(sparse) == support
    assert Support.from_sparse(0 * sparse) == support  # stored zeros count
    with pytest.raises(ValueError, match="from_mask"):
        Support.from_sparse(dense)
    assert Support.from_rows((4, 3), [2, 0]).positions.tolist() == [0, 1, 2, 6, 7, 8]
