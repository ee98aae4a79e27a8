"""Two thousand damaged files: each loads correctly or raises our error, without a crash and within its memory."""

import subprocess
import sys
import textwrap

import pytest

FUZZ = """
    import json, os, random, resource, struct, sys
    import numpy as np, torch, dctps
    from torch import nn
    from safetensors import safe_open
    from dctps.checkpoint.contents import digest_of

    folder, total = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)

    def build():
        with torch.device("meta"):
            return nn.Sequential(nn.Linear(3000, 3000), nn.BatchNorm1d(3000), nn.Conv2d(40, 50, 3), nn.Linear(700, 300))

    net = dctps.sparsify(build(), 0.02, offset="dct_signed")
    net[0].seed = None  # positions for one layer, seeds for the others
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    path = os.path.join(folder, "net.safetensors")
    dctps.save(net, path)
    original, expected = open(path, "rb").read(), net.state_dict()
    pristine = path + ".original"
    open(pristine, "wb").write(original)
    length = struct.unpack("<Q", original[:8])[0]
    header, body = json.loads(original[8 : 8 + length]), original[8 + length :]
    rng = random.Random(0)

    def flip(data):
        data = bytearray(data)
        # half of the flips go to the header, where one bit can mean anything
        span = rng.choice([len(data), 8 + length])
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(span)] ^= 1 << rng.randrange(8)
        return bytes(data)

    def cut(data):
        return data[: rng.randrange(len(data))]

    def splice(data):
        start, end = sorted(rng.randrange(len(data)) for _ in range(2))
        size = min(end - start, rng.choice([1, 8, 64, 100_000]))
        at = rng.randrange(len(data))
        piece = data[start : start + size]
        inserted, copied_over = data[:at] + piece + data[at:], data[:at] + piece + data[at + size :]
        return rng.choice([inserted, copied_over, data[:start] + data[end:]])

    SCALARS = [0, 1, -1, 2**31, 2**63, 10**30, 1.5, None, True, "", "x", [], {}, [2**40, 2**40], [0, 1], float("nan")]

    def fit_digest(meta, manifest):
        # as a careful forger would: what is checked behind the digest must hold by itself
        with safe_open(pristine, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        return digest_of(manifest, tensors)

    def edit(data):
        meta = json.loads(json.dumps(header))
        manifest = json.loads(meta["__metadata__"]["dctps"])
        places = [manifest, manifest["layers"], *manifest["layers"], meta["__metadata__"], meta, *meta.values()]
        place = rng.choice(places)
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = rng.choice(keys)
        action = rng.randrange(4)
        if action == 0:
            place[key] = rng.choice(SCALARS)
        elif action == 1:
            del place[key]
        elif action == 2 and isinstance(place[key], (int, float)):
            place[key] += rng.choice([-1, 1, 1000])
        elif isinstance(place, list):
            place.append(place[key])
        else:
            place[str(key) + "_"] = place[key]
        if isinstance(meta.get("__metadata__"), dict) and "dctps" in meta["__metadata__"]:
            if place is not meta["__metadata__"]:
                meta["__metadata__"]["dctps"] = text = json.dumps(manifest)
                if "digest" in meta["__metadata__"] and rng.random() < 0.5:
                    meta["__metadata__"]["digest"] = fit_digest(meta, text)
                    forged.add(number)
        text = json.dumps(meta).encode()
        return struct.pack("<Q", len(text)) + text + body

    def limit():
        # for the load that comes, on top of what the process has mapped by now
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 10 * len(original), resource.RLIM_INFINITY))

    dctps.load(path, build())
    loaded = refused = 0
    forged = set()
    for number in range(total):
        with open(path, "wb") as file:
            file.write([flip, cut, splice, edit][number % 4](original))
        target = build()
        refusal = None
        limit()
        try:
            dctps.load(path, target)
        except dctps.CheckpointError as error:
            refusal = error
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if refusal is not None:
            refused += 1
            assert all(p.is_meta for p in target.parameters()), "touched"
            continue
        loaded += 1
        if number in forged:  # consistently something else: a seed, an offset or an alpha that may train
            continue
        assert all(torch.equal(expected[k], t) for k, t in target.state_dict().items()), "wrong contents"
    print(len(original), loaded, refused, len(forged))
"""


@pytest.mark.process
def test_damaged_files_load_correctly_or_raise_our_error(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(FUZZ), str(tmp_path), "2000"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr[-3000:]
    _, loaded, refused, forged = map(int, run.stdout.split())
    assert loaded + refused == 2000
    assert forged > 100  # edited, and with a digest that fits
    assert refused > 1800
