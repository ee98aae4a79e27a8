"""The page of examples/browser in a headless Chromium: right classes, no other host, no error, at both widths."""

import base64
import functools
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.onnx_files import run

FOLDER = Path(__file__).parents[1] / "examples" / "browser"
RUNTIME = FOLDER / "node_modules" / "onnxruntime-web" / "dist" / "ort.wasm.min.mjs"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.skipif(not RUNTIME.exists(), reason="onnxruntime-web is not installed in examples/browser"),
    pytest.mark.required_in_ci("Install Chromium, then run: npm ci --ignore-scripts --prefix examples/browser"),
]


@pytest.fixture(scope="module")
def about():
    return json.loads((FOLDER / "network.json").read_text())


@pytest.fixture(scope="module")
def images():
    """The images of the page and their classes."""
    content = json.loads((FOLDER / "images.json").read_text())
    pixels = [np.frombuffer(base64.b64decode(code), dtype=np.uint8) for code in content["pixels"]]
    return torch.from_numpy(np.stack(pixels)).view(-1, 1, 32, 32), content["labels"]


def test_the_network_is_one_of_kilobytes(about):
    assert (FOLDER / "network.onnx").stat().st_size == about["bytes"] < about["dense_bytes"] / 8
    assert [layer["name"] for layer in about["layers"]] == ["conv1", "conv2", "conv3", "fc1", "fc2"]


def test_the_lock_file_names_no_registry():
    lock = (FOLDER / "package-lock.json").read_text()
    assert "http" not in lock
    assert json.loads(lock)["packages"]["node_modules/onnxruntime-web"]["version"] == "1.30.0"


def classes_by_runtime(images, about):
    x = (images.float() / 255 - about["mean"]) / about["std"]
    return run((FOLDER / "network.onnx").read_bytes(), x)[0].argmax(1).tolist()


def test_the_network_knows_the_images(images, about):
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pixels, labels = images
    assert len(labels) == 20
    assert classes_by_runtime(pixels, about) == labels


# --- the page -------------------------------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    handler = functools.partial(Quiet, directory=str(FOLDER))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as driver:
        options = [] if os.geteuid() else ["--no-sandbox"]  # which root cannot have
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture(params=[1280, 390])
def page(request, browser, address):
    opened = browser.new_page(viewport={"width": request.param, "height": 800})
    opened.said, opened.asked = [], []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("request", lambda asked: opened.asked.append(asked.url))
    opened.goto(address)
    opened.wait_for_selector("body[data-ready]", timeout=60_000)
    yield opened
    opened.close()


def after(page, act):
    """The class that the page shows after an action."""
    shown = page.evaluate("document.body.dataset.shown")
    act()
    page.wait_for_function(f"document.body.dataset.shown !== '{shown}'")
    return page.evaluate("document.body.dataset.best")


def in_browser(test):
    """Mark a test that needs Chromium and the packages of npm."""
    for mark in (pytest.mark.process, *needs):
        test = mark(test)
    return test


@in_browser
def test_the_page(page, images, about, address):
    _, labels = images
    buttons = page.query_selector_all("#images button")
    assert len(buttons) == 20
    found = [after(page, button.click) for button in buttons]
    assert found == [about["names"][label] for label in labels]
    assert f"{about['bytes']:,} bytes" in page.inner_text("#sizes")
    assert f"{about['dense_bytes']:,} bytes" in page.inner_text("#sizes")
    assert len(page.query_selector_all("#layers canvas")) == 5
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.said == []
    assert {url for url in page.asked if not url.startswith((address, "data:", "blob:"))} == set()


@in_browser
def test_one_can_draw(page):
    box = page.query_selector("#pad").bounding_box()
    page.click("#clear")
    before = page.inner_text("#classes")

    def stroke():
        page.mouse.move(box["x"] + 40, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 150, box["y"] + 150, steps=5)
        page.mouse.up()

    after(page, stroke)
    assert page.inner_text("#classes") != before
    assert not page.query_selector("#images button[aria-pressed='true']")
    assert page.said == []
