"""Data sets: tiny files in the official formats, damaged ones, downloads from a local server, and the real data."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dctps.cli.data import data_get
from dctps.data import DATASETS, DataError, Dataset, DatasetInfo, data_root, images, load
from dctps.data import download as downloads
from dctps.data.dataset import Remote
from dctps.data.download import get
from dctps.data.images import FORMATS

Image = pytest.importorskip("PIL.Image", reason="needs pillow")
RNG = np.random.default_rng(0)


def random_bytes(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def same(tensor, array):
    return torch.equal(tensor, torch.from_numpy(np.asarray(array)))


# --- the data set itself --------------------------------------------------------------------------------------------


def arguments(**changes):
    images, labels = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2, 1])
    values = {"name": "toy", "train_images": images, "train_labels": labels, "test_images": images[:2]}
    return values | {"test_labels": labels[:2], "classes": 3, "mean": (0.5,), "std": (0.5,)} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": torch.zeros(4, 1, 2, 2)}, "toy: the training images must be uint8"),
        ({"test_images": torch.zeros(2, 2, 2, dtype=torch.uint8)}, "test images must be uint8 of shape"),
        ({"train_labels": torch.tensor([0, 1, 3, -1])}, "label 3 at index 2 is not in 0 to 2"),
        ({"train_labels": torch.tensor([0, -1, 3, 1])}, "label -1 at index 1 "),
        ({"test_labels": torch.tensor([0, 1], dtype=torch.int32)}, "test labels must be int64"),
        ({"test_labels": torch.tensor([0, 1, 2])}, r"must be int64 of shape \(2,\), not \(3,\)"),
        ({"test_images": torch.zeros(2, 1, 2, 3, dtype=torch.uint8)}, "different sizes"),
        ({"mean": (0.5, 0.5)}, "one number per channel, 1"),
        ({"std": (0.0,)}, "positive"),
        ({"padding": -1}, "padding of -1"),
    ],
)
def test_a_data_set_checks_itself(changes, message):
    assert Dataset(**arguments()).padding == 4
    with pytest.raises(DataError, match=message):
        Dataset(**arguments(**changes))


def test_unknown_names_and_missing_files_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="unknown data set 'cifar'; choose one of: cifar10, cifar100, tiny_imagenet"):
        load("cifar")
    for name in set(DATASETS) - {"digits", "digits32"}:
        with pytest.raises(DataError, match=f"put .* into {tmp_path / name}, or run: dctps data get {name}"):
            load(name, tmp_path)


def test_the_root_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DCTPS_DATA", str(tmp_path / "a"))
    assert data_root() == tmp_path / "a"
    assert data_root("b") == Path("b")
    monkeypatch.delenv("DCTPS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert data_root() == tmp_path / "c" / "dctps"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "dctps"


@pytest.mark.parametrize(("module", "package"), [("PIL", "pillow"), ("pooch", "pooch"), ("sklearn", "scikit-")])
def test_a_missing_package_is_named(module, package, monkeypatch, tmp_path):
    write_folder(tmp_path / "own")
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    use = {
        "PIL": lambda: load(f"folder:{tmp_path / 'own'}"),
        "pooch": lambda: get("cifar10", tmp_path),
        "sklearn": lambda: load("digits"),
    }
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}.*; install it .*: pip install '\.\["):
        use[module]()


# --- CIFAR ----------------------------------------------------------------------------------------------------------

BINARY10 = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
PICKLED10 = [name.removesuffix(".bin") for name in BINARY10]


def cifar_files(version, count=3):
    """Contents by file name, and the images and fine labels (training then test) that they hold."""
    names = {"10-binary": BINARY10, "10-python": PICKLED10}.get(version)
    names = names or (["train.bin", "test.bin"] if version == "100-binary" else ["train", "test"])
    classes = int(version.split("-")[0])
    pixels, labels = random_bytes(len(names), count, 3072), RNG.integers(0, classes, (len(names), count))
    coarse = RNG.integers(0, 20, (len(names), count))
    contents = {}
    for name, x, y, c in zip(names, pixels, labels, coarse, strict=True):
        if version.endswith("binary"):
            columns = [c, y] if classes == 100 else [y]
            contents[name] = np.column_stack([*columns, x]).astype(np.uint8).tobytes()
        else:
            key = {b"labels": y.tolist()} if classes == 10 else {b"fine_labels": y.tolist(), b"coarse_labels": [0]}
            contents[name] = pickle.dumps({b"batch_label": b"x", b"data": x, **key}, protocol=2)
    return contents, pixels.reshape(len(names), count, 3, 32, 32), labels


FOLDERS = {
    "10-binary": ("cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
    "10-python": ("cifar-10-python.tar.gz", "cifar-10-batches-py"),
    "100-binary": ("cifar-100-binary.tar.gz", "cifar-100-binary"),
    "100-python": ("cifar-100-python.tar.gz", "cifar-100-python"),
}


def write_files(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_tar(path, contents, folder):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("where", ["", "own"])
@pytest.mark.parametrize("form", ["archive", "folder", "bare"])
@pytest.mark.parametrize("version", FOLDERS)
def test_cifar_in_every_official_form(version, form, where, tmp_path):
    name = f"cifar{version.split('-')[0]}"
    contents, pixels, labels = cifar_files(version)
    archive, folder = FOLDERS[version]
    place = tmp_path / name if where else tmp_path
    if form == "archive":
        write_tar(place / archive, contents, folder)
    else:
        write_files(place / folder if form == "folder" else place, contents)
    before = sorted(tmp_path.rglob("*"))
    data = load(name, tmp_path)
    assert same(data.train_images, pixels[:-1].reshape(-1, 3, 32, 32))
    assert same(data.train_labels, labels[:-1].reshape(-1))
    assert same(data.test_images, pixels[-1])
    assert same(data.test_labels, labels[-1])
    assert data.classes == int(version.split("-")[0]) == DATASETS[name].classes
    assert data.train_images.shape[1:] == DATASETS[name].image_shape
    assert (data.padding, data.flip, data.selects_on_test) == (4, True, False)
    assert data.mean == {10: (0.4914, 0.4822, 0.4465), 100: (0.5071, 0.4867, 0.4408)}[data.classes]
    assert data.std == {10: (0.2023, 0.1994, 0.2010), 100: (0.2675, 0.2565, 0.2761)}[data.classes]
    assert sorted(tmp_path.rglob("*")) == before  # nothing was extracted


@pytest.mark.parametrize(("version", "file"), [("10-binary", "test_batch.bin"), ("100-binary", "train.bin")])
def test_a_file_cut_at_a_record_is_found_beside_a_whole_one(version, file, tmp_path):
    """Where any file has the official number of images, all must."""
    contents, _, _ = cifar_files(version)
    record = len(next(iter(contents.values()))) // 3
    whole = {name: bytes(record * (50_000 if name == "train.bin" else 10_000)) for name in contents}
    write_files(tmp_path, {**whole, file: bytes(7 * record)})
    with pytest.raises(DataError, match=rf"the files must hold .*'{file}': 7"):
        load(f"cifar{version.split('-')[0]}", tmp_path)


def test_a_flipped_bit_in_a_compressed_archive_is_found(tmp_path):
    """Compressible content, where most flips still unpack: only the checksum at the end of the stream tells."""
    contents, _, _ = cifar_files("10-binary")
    contents = {name: bytes(3073 * 3) for name in contents}
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, contents, "cifar-10-batches-bin")
    original = path.read_bytes()
    found = 0
    for position in range(20, len(original), 3):
        path.write_bytes(original[:position] + bytes([original[position] ^ 4]) + original[position + 1 :])
        try:
            data = load("cifar10", tmp_path)
        except DataError:
            found += 1
        else:
            assert not data.train_images.any()
    assert found > 0.9 * len(range(20, len(original), 3))


def test_sizes_that_a_header_only_claims_are_not_allocated(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size = 10**12
        archive.fileobj.write(info.tobuf())
    with pytest.raises(DataError, match=r"claims 1,000,000,000,000 bytes|damaged"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c[:-1], r"data_batch_2\.bin has a wrong length: record 2 has 3072 of 3073 bytes"),
        (lambda c: c + b"x", r"data_batch_2\.bin has a wrong length: record 3 has 1 of 3073 bytes"),
        (lambda c: b"", r"data_batch_2\.bin has a wrong length: record 0 has 0 of 3073"),
        (lambda c: c[:3073], "files must hold.*not .*'data_batch_2.bin': 1"),
        (lambda c: c[:3073] + b"\x0a" + c[3074:], r"data_batch_2\.bin: record 1 has label 10, not one of 0 to 9"),
    ],
)
def test_a_damaged_binary_batch_is_named(damage, message, packed, tmp_path):
    contents, _, _ = cifar_files("10-binary")
    contents["data_batch_2.bin"] = damage(contents["data_batch_2.bin"])
    if packed:
        write_tar(tmp_path / "cifar-10-binary.tar.gz", contents, "cifar-10-batches-bin")
    else:
        write_files(tmp_path, contents)
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(("byte", "message"), [(0, "label 20, not one of 0 to 19"), (1, "label 100, .* 0 to 99")])
def test_both_label_bytes_of_cifar100_are_checked(byte, message, tmp_path):
    contents, _, _ = cifar_files("100-binary")
    damaged = bytearray(contents["train.bin"])
    damaged[3074 + byte] = (20, 100)[byte]
    write_files(tmp_path, contents | {"train.bin": bytes(damaged)})
    with pytest.raises(DataError, match=rf"train\.bin: record 1 has {message}"):
        load("cifar100", tmp_path)


def test_a_missing_batch_and_a_damaged_archive_are_named(tmp_path):
    contents, _, _ = cifar_files("10-binary")
    missing = {name: content for name, content in contents.items() if name != "data_batch_4.bin"}
    write_files(tmp_path, missing)
    with pytest.raises(DataError, match=r"has no data_batch_4\.bin"):
        load("cifar10", tmp_path)
    archive = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(archive, contents, "cifar-10-batches-bin")
    whole = archive.read_bytes()
    for cut in (whole[: len(whole) // 2], whole[:100], b"no archive", b""):
        archive.write_bytes(cut)
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is damaged"):
            load("cifar10", tmp_path)


def test_links_in_an_archive_are_not_followed(tmp_path):
    contents, _, _ = cifar_files("10-binary")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            if name == "data_batch_4.bin":
                info.type, info.linkname, info.size = tarfile.SYMTYPE, "data_batch_1.bin", 0
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(DataError, match=r"tar\.gz has no data_batch_4\.bin"):
        load("cifar10", tmp_path)


class Command:
    """Pickles as a call of os.system."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_a_command_runs_nothing(protocol, packed, tmp_path):
    contents, _, _ = cifar_files("10-python")
    evidence = tmp_path / "evidence"
    bad = pickle.dumps({b"data": Command(f"touch {evidence}"), b"labels": [1]}, protocol)
    contents["data_batch_3"] = bad
    if packed:
        write_tar(tmp_path / "cifar-10-python.tar.gz", contents, "cifar-10-batches-py")
    else:
        write_files(tmp_path, contents)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        DataError, match=rf"data_batch_3 asks for {os.system.__module__}\.system.*nothing of it was run"
    ):
        load("cifar10", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    pickle.loads(bad)
    assert evidence.exists()  # the test would have seen it


@pytest.mark.parametrize("name", ["numpy.load", "builtins.eval", "numpy.core.multiarray.fromfile", "dctps.data.load"])
def test_other_globals_are_refused_by_name(name, tmp_path):
    module, function = name.rsplit(".", 1)
    contents, _, _ = cifar_files("10-python")
    write_files(tmp_path, contents | {"test_batch": f"c{module}\n{function}\n.".encode()})
    with pytest.raises(DataError, match=f"test_batch asks for {name},"):
        load("cifar10", tmp_path)


def batch(**changes):
    return pickle.dumps({"data": random_bytes(3, 3072), "labels": [0, 1, 2]} | changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (batch()[:-200], "damaged or not a pickled batch"),
        (b"", "damaged or not a pickled batch"),
        (pickle.dumps([1, 2]), "holds a list, not the dictionary"),
        (pickle.dumps({"data": random_bytes(3, 3072)}), "has no 'labels'"),
        (batch(data=random_bytes(3, 3071)), r"must be uint8 \(n, 3072\), not uint8 \(3, 3071\)"),
        (batch(data=np.zeros((3, 3072))), "not float64"),
        (batch(data=[1]), "not list"),
        (batch(labels=[0, 1]), "3 images but labels int64"),
        (batch(labels=["a", "b", "c"]), "3 images but labels <U1"),
        (batch(labels=[0, 10, 2]), "record 1 has label 10, not one of 0 to 9"),
        (batch(labels=[0, 1, -1]), "record 2 has label -1"),
    ],
)
def test_a_damaged_pickled_batch_is_named(content, message, tmp_path):
    contents, _, _ = cifar_files("10-python")
    write_files(tmp_path, contents | {"data_batch_5": content})
    with pytest.raises(DataError, match=f"data_batch_5.*{message}"):
        load("cifar10", tmp_path)


def test_a_pickle_of_python_2_is_read():
    from dctps.data.pickles import unpickled

    # what Python 2 and its numpy wrote for {"data": uint8 [[1, 2]], "labels": [3]}
    old = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x01K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\x01\x02tbU\x06labelsq\x08]q\tK\x03au."
    )
    found = unpickled(old, "old")
    assert found["data"].tolist() == [[1, 2]]
    assert found["labels"] == [3]


# --- MNIST ----------------------------------------------------------------------------------------------------------

IDX = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_arrays(train=12, test=4):
    counts = (train, train, test, test)
    return [random_bytes(n, 28, 28) if i % 2 == 0 else random_bytes(n) % 10 for i, n in enumerate(counts)]


def write_mnist(folder, arrays, packed):
    for name, content in zip(IDX, map(idx, arrays), strict=True):
        write_files(folder, {f"{name}.gz": gzip.compress(content)} if packed else {name: content})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "flip", "mean", "std"), [("mnist", False, 0.1307, 0.3081), ("fashion_mnist", True, 0.286, 0.353)]
)
def test_mnist_gets_a_border(name, flip, mean, std, packed, tmp_path):
    arrays = mnist_arrays()
    write_mnist(tmp_path / name, arrays, packed)
    data = load(name, tmp_path)
    assert data.train_images.shape == (12, 1, 32, 32) == (12, *DATASETS[name].image_shape)
    assert same(data.train_images[:, 0, 2:30, 2:30], arrays[0])
    assert int(data.train_images.long().sum()) == int(arrays[0].sum())  # the border is zero
    assert same(data.test_images[:, 0, 2:30, 2:30], arrays[2])
    assert same(data.train_labels, arrays[1].astype(np.int64))
    assert same(data.test_labels, arrays[3].astype(np.int64))
    assert (data.flip, data.mean, data.std, data.classes) == (flip, (mean,), (std,), 10)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (0, lambda c: c[:-1], "wrong length: 9407 bytes for the shape .* record 11 is cut"),
        (0, lambda c: c + b"x", "wrong length: 9409 bytes"),
        (0, lambda c: b"\0\0\x08\x01" + c[4:], "starts with 00000801, not 00000803"),
        (1, lambda c: c[:6], "starts with 00000801"),
        (1, lambda c: c[:8] + b"\x0a" + c[9:], "record 0 has label 10, not one of 0 to 9"),
        (2, lambda c: idx(random_bytes(4, 28, 27)), "images of .* pixels, not 28 x 28"),
        (3, lambda c: idx(random_bytes(3) % 10), "4 images but .* 3 labels"),
    ],
)
def test_a_damaged_idx_file_is_named(file, damage, message, tmp_path):
    write_mnist(tmp_path, mnist_arrays(), packed=False)
    path = tmp_path / IDX[file]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{IDX[file].split('-')[0]}.*{message}"):
        load("mnist", tmp_path)


def test_a_damaged_gzip_and_a_missing_idx_file_are_named(tmp_path):
    write_mnist(tmp_path, mnist_arrays(), packed=True)
    path = tmp_path / f"{IDX[2]}.gz"
    whole = path.read_bytes()
    for cut in (whole[:-9], whole[:100], b"no gzip"):
        path.write_bytes(cut)
        with pytest.raises(DataError, match=f"{IDX[2]}.gz is damaged"):
            load("mnist", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=f"has no {IDX[2]}.gz"):
        load("mnist", tmp_path)


def test_files_of_the_other_mnist_are_refused(tmp_path):
    arrays = mnist_arrays()
    arrays[1][:10] = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    write_mnist(tmp_path, arrays, packed=True)
    assert load("mnist", tmp_path).name == "mnist"
    with pytest.raises(DataError, match="is a file of mnist, not of fashion_mnist"):
        load("fashion_mnist", tmp_path)


# --- digits ---------------------------------------------------------------------------------------------------------


def test_digits_in_the_shape_of_cifar():
    small, large = load("digits"), load("digits32")
    assert large.train_images.shape == (1437, 3, 32, 32)
    for channel in range(3):
        assert torch.equal(large.train_images[:, channel, 3::4, 1::4], small.train_images[:, 0])
    assert large.mean == small.mean * 3


def test_digits_and_their_constants():
    pytest.importorskip("sklearn")
    data = load("digits")
    assert (len(data.train_images), len(data.test_images)) == (1437, 360)
    assert data.train_images.shape[1:] == (1, 8, 8)
    assert set(data.train_images.unique().tolist()) == {15 * n for n in range(17)}
    scaled = data.train_images.double() / 255
    assert data.mean == (round(scaled.mean().item(), 4),)
    assert data.std == (round(scaled.std(correction=0).item(), 4),)
    assert (data.padding, data.flip, data.train_labels[:4].tolist()) == (0, False, [0, 1, 2, 3])


# --- Tiny ImageNet and folders of images ----------------------------------------------------------------------------


def picture(array, form="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, form)
    return buffer.getvalue()


def tiny_imagenet(foldered=False):
    """Contents by name (PNG data under JPEG names: lossless), and the training and validation images by label."""
    contents = {"wnids.txt": b"n02\nn01\n", "words.txt": b"n01\ta\n", "test/images/test_0.JPEG": b"not looked at"}
    train, val = random_bytes(2, 3, 64, 64, 3), random_bytes(4, 64, 64, 3)
    for label, wnid in enumerate(("n02", "n01")):
        for number, image in enumerate(train[label]):
            contents[f"train/{wnid}/images/{wnid}_{number}.JPEG"] = picture(image)
        contents[f"train/{wnid}/{wnid}_boxes.txt"] = b"n02_0.JPEG\t0\t0\t62\t62\n"
    wnids = ["n01", "n02", "n02", "n01"]
    for number, (image, wnid) in enumerate(zip(val, wnids, strict=True)):
        folder = f"val/{wnid}" if foldered else "val/images"
        contents[f"{folder}/val_{number}.JPEG"] = picture(image)
    rows = [f"val_{number}.JPEG\t{wnid}\t0\t0\t1\t1" for number, wnid in enumerate(wnids)]
    contents["val/val_annotations.txt"] = "\n".join(rows).encode()
    return contents, train, val


def write_zip(path, contents, prefix="tiny-imagenet-200/"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(prefix + name, content)


@pytest.mark.parametrize("foldered", [False, True])
@pytest.mark.parametrize("form", ["zip", "tiny-imagenet-200", "other", "bare"])
def test_tiny_imagenet_in_every_form(form, foldered, tmp_path):
    contents, train, val = tiny_imagenet(foldered)
    place = tmp_path / "tiny_imagenet"
    if form == "zip":
        write_zip(place / "tiny-imagenet-200.zip", contents)
    else:
        write_files(place if form == "bare" else place / form, contents)
    for _ in range(2):  # decoded, then from the cache
        data = load("tiny_imagenet", tmp_path)
        assert same(data.train_images, train.reshape(6, 64, 64, 3).transpose(0, 3, 1, 2))
        assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
        order = [1, 2, 0, 3] if foldered else [0, 1, 2, 3]
        assert same(data.test_images, val[order].transpose(0, 3, 1, 2))
        assert data.test_labels.tolist() == ([0, 0, 1, 1] if foldered else [1, 0, 0, 1])
        assert data.selects_on_test
        assert data.classes == 2
        assert data.train_images.shape[1:] == DATASETS["tiny_imagenet"].image_shape
    assert len(list(tmp_path.rglob("*.dctps.safetensors"))) == 1


def test_grey_images_become_rgb(tmp_path):
    contents, _, _ = tiny_imagenet()
    grey = random_bytes(64, 64)
    contents["train/n02/images/n02_0.JPEG"] = picture(grey)
    write_files(tmp_path / "tiny-imagenet-200", contents)
    assert same(load("tiny_imagenet", tmp_path).train_images[0], np.stack([grey] * 3))


def changed(name, content):
    return lambda contents: contents.update({name: content})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            changed("train/n01/images/n01_1.JPEG", b"no image"),
            "the image train/n01/images/n01_1.JPEG cannot be decoded",
        ),
        (
            changed("val/images/val_2.JPEG", picture(random_bytes(64, 64, 3), "JPEG")[:900]),
            "val_2.JPEG cannot be decoded",
        ),
        (
            changed("val/images/val_1.JPEG", picture(random_bytes(64, 60, 3))),
            "val_1.JPEG has 64 x 60 pixels, but 64 x 64",
        ),
        (changed("train/n03/images/a.JPEG", b""), "a.JPEG is of class n03, which wnids.txt does not list"),
        (changed("wnids.txt", b"n02 n01 n04"), "class n04 has no training image"),
        (changed("wnids.txt", b"n02 n01 n01"), "must list each class once"),
        (changed("val/images/val_9.JPEG", b""), "does not list val/images/val_9.JPEG"),
        (changed("val/val_annotations.txt", b"val_0.JPEG\tn01\n"), "does not list val/images/val_1.JPEG"),
        (lambda contents: contents.pop("val/images/val_3.JPEG"), "but is not there, val/images/val_3.JPEG"),
        (lambda contents: contents.pop("val/val_annotations.txt"), "has no val/val_annotations.txt"),
    ],
)
def test_damaged_tiny_imagenet_is_named_and_leaves_no_cache(damage, message, packed, tmp_path):
    contents, _, _ = tiny_imagenet()
    damage(contents)
    if packed:
        write_zip(tmp_path / "tiny-imagenet-200.zip", contents)
    else:
        write_files(tmp_path / "tiny-imagenet-200", contents)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=message):
        load("tiny_imagenet", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_zip_is_named(tmp_path):
    path = tmp_path / "tiny-imagenet-200.zip"
    contents, _, _ = tiny_imagenet()
    write_zip(path, contents)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip is damaged or not a zip"):
        load("tiny_imagenet", tmp_path)
    flipped = bytearray(whole)
    flipped[whole.index(contents["val/images/val_0.JPEG"]) + 500] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataError, match=r"val/images/val_0\.JPEG cannot be read"):
        load("tiny_imagenet", tmp_path)
    write_zip(path, {"a/b": b""})
    with pytest.raises(DataError, match=r"has no wnids\.txt"):
        load("tiny_imagenet", tmp_path)


def write_folder(folder, test="test"):
    contents = {}
    for part, count in (("train", 3), (test, 2)):
        for label in ("b", "a"):
            for number in range(count):
                contents[f"{part}/{label}/{number}.png"] = picture(random_bytes(6, 9, 3))
    write_files(folder, contents | {"train/a/notes.txt": b"", "train/a/.hidden.png": b"", "train/loose.png": b""})


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_of_images(test, tmp_path, monkeypatch):
    write_folder(tmp_path / "own", test)
    (tmp_path / "own/train/b/3.JPG").write_bytes(picture(random_bytes(6, 9, 3), "JPEG"))
    data = load(f"folder:{tmp_path / 'own'}")
    assert data.train_images.shape == (7, 3, 6, 9)
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.test_labels.tolist() == [0, 0, 1, 1]
    expected = np.asarray(Image.open(tmp_path / "own/train/b/0.png")).transpose(2, 0, 1)
    assert same(data.train_images[3], expected.copy())
    scaled = data.train_images.double().transpose(0, 1).flatten(1) / 255
    torch.testing.assert_close(torch.tensor(data.mean).double(), scaled.mean(1), rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.tensor(data.std).double(), scaled.std(1, correction=0), rtol=0, atol=1e-6)
    monkeypatch.chdir(tmp_path / "own")
    assert torch.equal(load("folder:.").train_images, data.train_images)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test/b/9.png", picture(random_bytes(9, 6, 3)), "test/b/9.png has 9 x 6 pixels, but 6 x 9 are needed"),
        ("test/a/0.png", picture(random_bytes(9, 6, 3)), "test/a/0.png has 9 x 6 pixels, but 6 x 9 are needed"),
        ("test/c/0.png", picture(random_bytes(6, 9, 3)), "test/c/0.png is of class c, of which train/ has no image"),
        ("train/a/1.png", picture(random_bytes(6, 9, 3))[:80], "the image train/a/1.png cannot be decoded"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_without_a_cache(name, content, message, tmp_path):
    write_folder(tmp_path / "own")
    write_files(tmp_path / "own", {name: content})
    with pytest.raises(DataError, match=message):
        load(f"folder:{tmp_path / 'own'}")
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_folders_hold_images_of_the_formats_that_are_named(tmp_path):
    write_folder(tmp_path / "own")
    names = {"PNG": "4.PNG", "JPEG": "5.jpeg", "BMP": "6.bmp", "WEBP": "7.webp"}
    images = {f"train/a/{name}": picture(random_bytes(6, 9, 3), form) for form, name in names.items()}
    write_files(tmp_path / "own", images)
    assert len(load(f"folder:{tmp_path / 'own'}").train_images) == 6 + 4
    assert {name.rpartition(".")[2].lower() for name in names.values()} | {"jpg"} == {end[1:] for end in FORMATS}


@pytest.mark.parametrize("form", ["EPS", "GIF", "TIFF", "PPM"])
def test_no_other_format_is_opened_whatever_its_name(form, tmp_path, monkeypatch):
    """Pillow would open them, and start Ghostscript for one of them."""
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *arguments, **options: started.append(arguments))
    write_folder(tmp_path / "own")
    write_files(tmp_path / "own", {"train/a/1.png": picture(random_bytes(6, 9, 3), form)})
    with pytest.raises(DataError, match=r"the image train/a/1\.png cannot be decoded \(cannot identify image file"):
        load(f"folder:{tmp_path / 'own'}")
    assert not started


def test_no_folder_and_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        load(f"folder:{tmp_path / 'none'}")
    with pytest.raises(DataError, match="has no image train/<class>"):
        load(f"folder:{tmp_path}")


@pytest.fixture
def counted(monkeypatch):
    """The names of the images decoded."""
    names, real = [], images._pixels
    monkeypatch.setattr(images, "_pixels", lambda source, name, size: names.append(name) or real(source, name, size))
    return names


def test_the_cache_is_used_and_rebuilt_when_stale_or_damaged(tmp_path, counted):
    write_folder(tmp_path / "own")
    name, cache = f"folder:{tmp_path / 'own'}", tmp_path / "own.dctps.safetensors"

    def decodes():
        counted.clear()
        data = load(name)
        expected = np.asarray(Image.open(tmp_path / "own/train/a/0.png")).transpose(2, 0, 1)
        assert same(data.train_images[0], expected.copy())
        return bool(counted)

    assert [decodes(), decodes()] == [True, False]
    write_files(tmp_path / "own", {"train/a/0.png": picture(random_bytes(6, 9, 3))})
    assert [decodes(), decodes()] == [True, False]
    (tmp_path / "own/test/a/1.png").unlink()
    assert [decodes(), decodes()] == [True, False]
    whole = cache.read_bytes()
    for damaged in (whole[:-1], whole[:50], b"", whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]):
        cache.write_bytes(damaged)
        assert [decodes(), decodes()] == [True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", cache.name]


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path):
    write_folder(tmp_path / "own")
    (tmp_path / "own.dctps.safetensors").mkdir()
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert len(load(f"folder:{tmp_path / 'own'}").train_images) == 6


# --- downloads ------------------------------------------------------------------------------------------------------

CONTENT = random_bytes(300_000).tobytes()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT with ranges; cuts the connection half way as often as the server's `cuts` says."""

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if self.path == "/gone.bin":
            return self.send_error(404)
        if start >= len(CONTENT):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        end = len(CONTENT)
        if self.server.cuts:
            self.server.cuts -= 1
            end = (start + end) // 2
        self.wfile.write(CONTENT[start:end])

    def log_message(self, *arguments):
        pass


def offer(monkeypatch, remote):
    """Register a data set with one official file."""
    monkeypatch.setitem(DATASETS, "toy", DatasetInfo("toy", "Toy", 1, 2, 3, 4, lambda root: None, (remote,)))


@pytest.fixture
def server(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.cuts, server.ranges = [], 0, True
    server.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    offer(monkeypatch, Remote(f"{server.url}toy.bin", MD5))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ranges(server):
    return [asked for _, asked in server.requests]


def test_a_download_is_checked_and_kept(server, tmp_path, capsys):
    assert get("toy", tmp_path) == [tmp_path / "toy" / "toy.bin"]
    assert (tmp_path / "toy/toy.bin").read_bytes() == CONTENT
    data_get("toy", tmp_path)
    assert capsys.readouterr().out == f"{tmp_path}/toy/toy.bin\n"
    assert len(server.requests) == 1
    (tmp_path / "toy/toy.bin").write_bytes(b"damaged")
    get("toy", tmp_path)
    assert (tmp_path / "toy/toy.bin").read_bytes() == CONTENT


def test_a_broken_connection_is_resumed(server, tmp_path):
    server.cuts = 2
    get("toy", tmp_path)
    assert (tmp_path / "toy/toy.bin").read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=150000-", "bytes=225000-"]
    assert os.listdir(tmp_path / "toy") == ["toy.bin"]


@pytest.mark.parametrize(("ranged", "length"), [(True, 1000), (False, 1000), (True, 300_000), (True, 300_001)])
def test_a_part_of_an_earlier_run_is_continued(ranged, length, server, tmp_path):
    server.ranges = ranged  # a server that knows no ranges sends the whole file
    write_files(tmp_path / "toy", {"toy.bin.part": (CONTENT + b"x")[:length]})
    get("toy", tmp_path)
    assert (tmp_path / "toy/toy.bin").read_bytes() == CONTENT
    assert ranges(server) == [f"bytes={length}-", *([None] if length >= 300_000 else [])]


def test_a_download_given_up_keeps_its_part_for_the_next(server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "ATTEMPTS", 1)
    server.cuts = 1
    with pytest.raises(DataError, match=r"toy\.bin \(.*the part received is kept in .*toy\.bin\.part"):
        get("toy", tmp_path)
    assert os.listdir(tmp_path / "toy") == ["toy.bin.part"]
    get("toy", tmp_path)
    assert (tmp_path / "toy/toy.bin").read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=150000-"]


@pytest.mark.parametrize("part", [b"", b"another file"])
def test_a_wrong_checksum_is_refused_and_nothing_is_left(part, server, tmp_path, monkeypatch):
    md5 = MD5 if part else "0" * 32  # a part of another file goes wrong by itself
    offer(monkeypatch, Remote(f"{server.url}toy.bin", md5))
    if part:
        write_files(tmp_path / "toy", {"toy.bin.part": part})
    with pytest.raises(DataError, match=f"toy.bin is not the official file: its checksum is not the md5 {md5}"):
        get("toy", tmp_path)
    assert os.listdir(tmp_path / "toy") == []


def test_without_a_network_the_error_says_what_to_put_where(server, tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/toy.bin"  # bound, but nobody listens
        offer(monkeypatch, Remote(url, MD5))
        with pytest.raises(DataError, match=f"cannot fetch {url} .* put it into {tmp_path / 'toy'}$"):
            get("toy", tmp_path)
    offer(monkeypatch, Remote(f"{server.url}gone.bin", MD5))
    with pytest.raises(DataError, match=r"gone\.bin \(HTTP Error 404"):
        get("toy", tmp_path)


def test_every_data_set_can_be_fetched_or_needs_no_fetching(capsys):
    assert {name for name, info in DATASETS.items() if not info.files} == {"digits", "digits32"}
    for info in DATASETS.values():
        assert all(len(remote.md5) == 32 and remote.url.endswith(remote.name) for remote in info.files)
    data_get("digits")
    assert "scikit-learn" in capsys.readouterr().out
    with pytest.raises(DataError, match="unknown data set 'cifar'; choose one of: cifar10"):
        data_get("cifar")


# --- the real data --------------------------------------------------------------------------------------------------

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_cifar10(tmp_path_factory):
    if os.environ.get("DCTPS_DATA"):
        return Path(os.environ["DCTPS_DATA"])
    if not (SHARED / "unpack.py").is_file():
        pytest.skip("no real CIFAR-10: set DCTPS_DATA to a folder that has it")
    root = tmp_path_factory.mktemp("cifar10")
    command = [sys.executable, SHARED / "unpack.py", "unpack", SHARED / "cifar10.cifar.xz", root]
    subprocess.run(command, check=True)
    return root


@pytest.fixture(scope="session")
def real_tiny_imagenet(tmp_path_factory):
    if os.environ.get("DCTPS_DATA"):
        return Path(os.environ["DCTPS_DATA"])
    if not (SHARED / "tiny-imagenet-sub20.tar.xz").is_file():
        pytest.skip("no real Tiny ImageNet: set DCTPS_DATA to a folder that has it")
    root = tmp_path_factory.mktemp("tiny")
    subprocess.run(["tar", "xf", SHARED / "tiny-imagenet-sub20.tar.xz", "-C", root], check=True)
    return root


def load_or_skip(name, root):
    try:
        return load(name, root)
    except DataError as error:
        if "found no" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.process
def test_real_cifar10(real_cifar10):
    data = load_or_skip("cifar10", real_cifar10)
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert data.train_labels.bincount().tolist() == [5000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10
    assert data.train_labels[:5].tolist() == [6, 9, 9, 4, 1]
    means = data.train_images.transpose(0, 1).flatten(1).double().mean(1) / 255
    torch.testing.assert_close(means, torch.tensor(data.mean).double(), rtol=0, atol=1e-4)


@pytest.mark.process
def test_real_tiny_imagenet(real_tiny_imagenet, counted):
    data = load_or_skip("tiny_imagenet", real_tiny_imagenet)
    assert data.train_labels.bincount().tolist() == [500] * data.classes
    assert data.test_labels.bincount().tolist() == [50] * data.classes
    assert data.train_images.shape[1:] == (3, 64, 64)
    counted.clear()
    again = load("tiny_imagenet", real_tiny_imagenet)
    assert not counted
    assert torch.equal(again.train_images, data.train_images)
