"""The speeds in the README are those of the tables that it names beside them."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTION = (ROOT / "README.md").read_text().split("## How fast, how large")[1].split("\n## ")[0]
OFFSETS = {
    "DCT": "dct",
    "DCT, channel order and signs": "dct_signed",
    "Hadamard, channel signs": "hadamard/spatial/channel/lowest/0",
    "none": "none",
}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def body(heading):
    """The rows of a table of the section, by what its first heading begins with."""
    _, lines = re.split(rf"\n\| {heading}[^\n]*\n\|[-:|]+\n", SECTION)
    return [cells(line) for line in lines.split("\n\n")[0].splitlines()]


def medians(path, network, density, offset="none"):
    """Milliseconds by contender, and of how many steps they are the medians.

    network: its name and, if it is not the usual one, " of width" and its width.
    """
    model, _, width = network.partition(" of width ")
    with (ROOT / path).open(newline="") as file:
        wanted = model.lower(), width, density, offset
        rows = [
            r
            for r in csv.DictReader(file)
            if (r["model"], r.get("width", ""), float(r["density"]), r["offset"]) == wanted
        ]
    return {row["contender"]: float(row["median_ms"]) for row in rows}, {row["steps"] for row in rows}


def fraction(percent):
    return float(percent.removesuffix(" %")) / 100


def assert_rounded(text, value):
    """The text is the value to as many digits as the text has; a half may be rounded up or down."""
    number = text.split()[0].removesuffix("x")
    digits = len(number.partition(".")[2])
    assert abs(float(number) - value) <= 0.5 * 10**-digits * (1 + 1e-3), (text, value)


STEPS = {"avx512": body("network, density, offset"), "avx2": body("with AVX2: network, density, offset")}


@pytest.mark.parametrize(("instructions", "row"), [(name, row) for name, rows in STEPS.items() for row in rows])
def test_whole_steps(instructions, row):
    name, dense, ours, ratio, ratio_fused, ratio_published, link = row
    model, density, offset = re.sub(r" \(.*", "", name).split(", ", 2)
    (path,) = re.findall(r"\((results/.*\.csv)\)", link)
    times, steps = medians(path, model, fraction(density), OFFSETS[offset])
    with (ROOT / path).open(newline="") as file:
        assert {r["torch_instruction_set"] for r in csv.DictReader(file)} == {instructions}
    assert steps == {(re.findall(r"medians of (\d+)", name) or ["7"])[0]}
    for text, contender in ((dense, "dense"), (ours, "ours")):
        assert_rounded(text, times[contender] / {"ms": 1, "s": 1000}[text.split()[1]])
    assert_rounded(ratio, times["dense"] / times["ours"])
    assert_rounded(ratio_fused, times["dense_fused"] / times["ours"])
    if ratio_published:
        assert_rounded(ratio_published, times["published"] / times["ours"])


@pytest.mark.parametrize("row", body("density: times dense"), ids=lambda row: row[0])
def test_networks_without_an_offset(row):
    density, *texts = row
    columns = [(model, batch) for model in ("vgg19", "resnet18") for batch in (128, 32)]
    for text, (model, batch) in zip(texts, columns, strict=True):
        (path,) = set(re.findall(rf"\[batch {batch}\]\((results/.*?\.csv)\)", SECTION))
        times, _ = medians(path, model, fraction(density))
        for ratio, other in zip(text.split(", "), ("dense", "sparseprop"), strict=True):
            assert_rounded(ratio, times[other] / times["ours"])


def table(name):
    with (ROOT / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_linear_layers():
    passes = {
        row["size"]: float(row["ratio_to_dense"])
        for row in table("bench-scaling-dct")
        if (row["sweep"], row["layer"], row["contender"]) == ("size", "linear", "ours")
    }
    steps = {row["size"]: row for row in table("bench-linear-step")}
    shown = {size: (ratio, step) for size, ratio, step in body("size")}
    assert {size for size, (ratio, _) in shown.items() if ratio} <= passes.keys()
    assert {size for size, (_, step) in shown.items() if step} == steps.keys()
    for size, (ratio, step) in shown.items():
        if ratio:
            assert_rounded(ratio, passes[size])
        if step:
            numbers = re.fullmatch(r"(\S+)x: (\S+) instead of (\S+) ms", step).groups()
            for text, column in zip(numbers, ("ratio", "sparse_ms", "dense_ms"), strict=True):
                assert_rounded(text, float(steps[size][column]))


def test_a_linear_layer_has_one_speed_on_the_page():
    text = SECTION.split("The next table says how many times faster a square `DpsLinear`")
    assert len(text) == 2
    assert not re.search(r"\b1024\b", text[0] + text[1].split("![")[1])  # beside the table and its own sentences


ROOFLINE = {  # (kernel, stride, offset) of the rows that a sentence of the README is about
    "The published offset's products in 3 x 3 layers": ("3", "1", "dct"),
    "In a strided layer they": ("3", "2", "dct"),
}


@pytest.mark.parametrize("sentence", ROOFLINE)
def test_shares_of_the_peak(sentence):
    text = " ".join(SECTION.split())
    words = r" reach (\d+)(?: to (\d+))?(?: % of the peak forwards)? and (\d+)(?: to (\d+))? %"
    least, most, least_back, most_back = re.match(words, text.split(sentence)[1]).groups()
    for direction, low, high in (("forward", least, most), ("backward", least_back, most_back)):
        shares = [
            float(row["of_peak"])
            for row in table("bench-roofline")
            if (row["kernel"], row["stride"], row["offset"]) == ROOFLINE[sentence]
            and row["direction"] == direction
            and row.get("route", "product") == "product"
        ]
        assert_rounded(low, 100 * min(shares))
        assert_rounded(high or low, 100 * max(shares))


def test_inference():
    (path,) = re.findall(r"results/[^\s)]*-b32-inference[^\s)]*\.csv", SECTION)
    found = re.findall(r"Inference \(batch 32\): VGG19 ([\d.]+x), ResNet50 ([\d.]+x)", SECTION)[0]
    for text, model in zip(found, ("vgg19", "resnet50"), strict=True):
        times, _ = medians(path, model, 0.001, "dct")
        assert_rounded(text, times["dense"] / times["ours"])


@pytest.mark.parametrize(
    ("batch", "words"), [(32, r"it is ([\d.]+x) and ([\d.]+x)"), (1, r"images ([\d.]+x) and ([\d.]+x)")]
)
def test_inference_against_the_fastest_dense_network(batch, words):
    (path,) = re.findall(rf"results/[^\s)]*-b{batch}-inference[^\s)]*\.csv", SECTION)
    for text, model in zip(re.findall(words, SECTION)[0], ("vgg19", "resnet50"), strict=True):
        times, _ = medians(path, model, 0.001, "dct")
        best = min(times[name] for name in ("dense", "dense_fused", "onnxruntime", "openvino"))
        assert_rounded(text, best / times["ours"])
