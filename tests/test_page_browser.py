"""The page in a browser: a headless Chromium of the system, on file://, with everything that a reader does."""

import dataclasses
import os
import re
import shutil

import pytest

from dctps.analysis.page.render import write_page
from dctps.experiments.paper import PAPER_METHODS
from dctps.experiments.results import read
from helpers.pages import BASE, EVIL, sparse, task_result, training_failure, training_result, write_metrics, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.required_in_ci("Install Chromium (on Debian: apt-get install chromium) and pip install '.[test]'."),
]
DENSITIES = (0.002, 0.01, 0.02, 0.1)
SHOWN = "Random (EPL)", "SynFlow", "DCTpS"
WIDTHS = (1280, 390)
NONE = "\u2013"  # what stands in a cell without a number


def fill(runs):
    """Two panels, one of them with a line that collapses; some hundred runs; all kinds of charts; evil words."""
    for seed in range(3):
        settings = dataclasses.replace(BASE, seed=seed)
        write_metrics(write_run(runs, training_result(settings, test=0.97 + seed / 100, weights=1_000_000)), 3)
        for place, density in enumerate(DENSITIES):
            for name in SHOWN:
                settings = sparse(density, BASE, seed=seed, **PAPER_METHODS[name])
                if name == "SynFlow" and density < 0.01:
                    write_run(runs, training_failure(settings, "collapsed", "no path is left"), "failure.json")
                    continue
                number = 0.2 * place + seed / 50 + 0.1
                result = training_result(settings, test=number, weights=round(density * 100_000) + seed)
                write_metrics(write_run(runs, result), 3)
    other = dataclasses.replace(BASE, data="cifar10", width=8)
    for seed in range(120):
        write_run(runs, training_result(sparse(0.05, other, seed=seed), test=seed / 200))
    layers = [{"name": f"layer{i}", "nnz": 10 * i, "size": 1000} for i in range(5)]
    write_run(runs, task_result("counts", sparse(), layers=layers, others=0))
    write_run(runs, task_result("jacobian", sparse(), singular_values=[[3.0, 2.0, 0.0], [2.0, 1.0, 0.0]]))
    evil = dataclasses.replace(BASE, data="mnist", density=0.1, offset=None, method=EVIL)
    write_run(runs, training_result(evil))
    write_run(runs, training_failure(dataclasses.replace(evil, seed=1), "failed", EVIL), "failure.json")
    write_run(runs, "{", folder="<img src=x onerror=alert(1)>")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    pytest.importorskip("plotly", reason="needs the report extra")
    folder = tmp_path_factory.mktemp("page")
    fill(folder / "runs")
    write_page(read(folder / "runs"), folder / "runs", folder / "report.html", curves=30)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as driver:
        options = [] if os.geteuid() else ["--no-sandbox"]  # which root cannot have
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


class Watch:
    """What a page asks for, and what it complains about."""

    def __init__(self, page):
        self.requests, self.complaints = [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))


@pytest.fixture
def opened(browser, file):
    """Opens the page at a width; at the end nothing may have been asked for but the page, nor complained about."""
    watches, pages = [], []

    def open_at(width=1280, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        watches.append(Watch(page))
        page.goto(file.as_uri())
        page.wait_for_selector("#accuracy-plot .scatterlayer .trace", state="attached")
        return page

    yield open_at
    for page, watch in zip(pages, watches, strict=True):
        page.close()
        assert watch.requests == [file.as_uri()]
        assert watch.complaints == []


def traces(page, name, plot="accuracy-plot"):
    """Whether the traces of a line are visible."""
    return page.evaluate(
        "([id, name]) => document.getElementById(id).data.filter((t) => t.meta === name).map((t) => t.visible)",
        [plot, name],
    )


def drawn(page, plot="accuracy-plot"):
    """How many lines and bands stand in a chart."""
    lines = page.locator(f"#{plot} .scatterlayer path.js-line").count()
    return lines, page.locator(f"#{plot} .scatterlayer .js-fill").count()


def cells(page, name):
    """The texts of a column, by the name in its heading."""
    heads = page.locator("#heads th").evaluate_all("all => all.map((th) => th.dataset.column ?? '')")
    place = heads.index(name) + 1
    return page.locator(f"#rows tr td:nth-child({place})").all_inner_texts()


def numbers(texts):
    return [float(re.sub(r"[^\d.]", "", text)) for text in texts if text != NONE]


def head(page, name):
    return page.locator(f"#heads th[data-column='{name}']")


def test_everything_on_the_page_works_without_a_network_or_a_complaint(opened):
    page = opened()
    for panel in range(page.locator("#panel option").count()):
        page.select_option("#panel", str(panel))
        page.select_option("#kind", "validation")
        page.select_option("#kind", "test")
    for column in page.locator("#heads th button").all():
        column.click()
        column.click()
    for kind in ("train", "loss", "validation"):
        page.select_option("#curve-kind", kind)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.locator("#accuracy-numbers tbody tr").count() > 0
    assert "4 for each trained weight" in page.locator("#table dl").inner_text()
    assert page.locator("#layers-plot .scatterlayer .trace").count() == 2  # sizes, and a line
    assert page.locator("#spectra-plot .scatterlayer .trace").count() == 2  # a band, and a line
    assert "are 0" in page.locator("#spectra-note").inner_text()


def test_charts_have_no_button_that_sends_them_anywhere(opened):
    page = opened()
    buttons = page.locator(".modebar-btn").evaluate_all("all => all.map((button) => button.dataset.title)")
    assert set(buttons) == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_a_chart_can_be_saved_as_an_image(browser, file):
    """Which the page's policy must not forbid; the image is made from an address of the page's own data."""
    page = browser.new_page()
    page.goto(file.as_uri())
    page.locator("#accuracy-plot").hover()
    with page.expect_download() as download:
        page.locator("#accuracy-plot .modebar-btn").first.click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    page.close()


def test_the_panel_with_most_runs_comes_first_and_another_can_be_chosen(opened):
    page = opened()
    assert "CIFAR-10, width 8" in page.locator("#panel option:checked").inner_text()
    page.select_option(
        "#panel", label=next(t for t in page.locator("#panel option").all_inner_texts() if "digits" in t)
    )
    names = page.locator("#accuracy-choices label").all_inner_texts()
    assert [name.strip() for name in names] == ["dense", *SHOWN]
    assert "collapsed; drawn at chance" in page.locator("#accuracy-note").inner_text()


@pytest.fixture
def digits(opened):
    page = opened()
    page.select_option(
        "#panel", label=next(t for t in page.locator("#panel option").all_inner_texts() if "digits" in t)
    )
    return page


def test_toggling_a_method_hides_its_line_and_its_band(digits):
    assert traces(digits, "DCTpS") == [True] * 4
    before = drawn(digits)
    box = digits.get_by_label("DCTpS", exact=True)
    box.focus()
    digits.keyboard.press("Space")
    assert traces(digits, "DCTpS") == [False] * 4
    assert traces(digits, "SynFlow") == [True] * 4
    after = drawn(digits)
    assert after[0] < before[0]
    assert after[1] == before[1] - 1
    box.click()
    assert drawn(digits) == before
    digits.locator("#accuracy-choices").get_by_role("button", name="none").click()
    assert drawn(digits) == (0, 0)


def test_a_hidden_method_stays_hidden_in_other_views(digits):
    digits.get_by_label("DCTpS", exact=True).click()
    digits.select_option("#kind", "validation")
    assert traces(digits, "DCTpS") == [False] * 4


def test_a_collapsed_method_is_drawn_at_chance(digits):
    levels = digits.evaluate("""() => document.getElementById("accuracy-plot").data
        .filter((t) => t.meta === "SynFlow" && t.mode === "markers").flatMap((t) => t.y)""")
    assert levels == [10, None, None, None]
    line = digits.evaluate("""() => document.getElementById("accuracy-plot").data
        .filter((t) => t.meta === "SynFlow" && t.mode === "lines+markers").flatMap((t) => t.y)""")
    assert line == [None, pytest.approx(32), pytest.approx(52), pytest.approx(72)]


def test_hovering_shows_seeds_accuracy_and_weights(digits):
    for name in ("SynFlow", "Random (EPL)", "dense"):
        digits.get_by_label(name, exact=True).click()
    point = digits.locator("#accuracy-plot .scatterlayer .points path").last.bounding_box()
    digits.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    digits.wait_for_selector("#accuracy-plot .hoverlayer .hovertext")
    text = digits.locator("#accuracy-plot .hoverlayer").text_content()
    for part in ("DCTpS", "density 10 %", "test 72.00 ± 2.00 %", "n = 3 seeds", "10,001 weights"):
        assert part in text


def test_numbers_are_sorted_as_numbers(opened):
    page = opened()
    page.select_option("#size", "250")
    for column in ("weights", "density", "test"):
        head(page, column).locator("button").click()
        up = numbers(cells(page, column))
        assert up == sorted(up)
        assert len(set(up)) > 3
        assert head(page, column).get_attribute("aria-sort") == "ascending"
        assert cells(page, column)[-1] == NONE  # what has none comes last
        head(page, column).locator("button").click()
        down = numbers(cells(page, column))
        assert down == sorted(up, reverse=True)
        assert head(page, column).get_attribute("aria-sort") == "descending"
        assert cells(page, column)[-1] == NONE
    head(page, "method").locator("button").click()
    names = cells(page, "method")
    assert names == sorted(names, key=str.lower)


def test_only_a_window_of_the_rows_is_rendered(opened):
    page = opened()
    total = int(re.search(r"of (\d+) runs", page.locator("#position").inner_text())[1])
    assert total > 150
    assert page.locator("#rows tr").count() == 50
    page.locator("#last").click()
    assert page.locator("#rows tr").count() == (total - 1) % 50 + 1
    assert page.locator("#next").is_disabled()
    page.locator("#previous").click()
    assert page.locator("#rows tr").count() == 50


def test_filters_and_the_search_narrow_the_table(opened):
    page = opened()
    page.select_option("[data-filter=status]", label="collapsed")
    assert cells(page, "status") == ["collapsed\nno path is left"] * 3
    page.select_option("[data-filter=method]", label="DCTpS")
    assert page.locator("#position").inner_text() == "no run fits"
    page.locator("#reset").click()
    page.locator("#search").fill("PATH synflow")
    assert set(cells(page, "method")) == {"SynFlow"}
    assert len(cells(page, "method")) == 3


def test_runs_are_chosen_for_the_curves_in_the_table(opened):
    page = opened()
    page.locator("#curves-clear").click()
    assert page.locator("#curves-plot .scatterlayer .trace").count() == 0
    page.locator("#search").fill("synflow done")
    page.locator("#rows input[type=checkbox]").first.check()
    assert page.locator("#curves-plot .scatterlayer .trace").count() == 1
    page.locator("#curves-chips button").click()
    assert page.locator("#curves-plot .scatterlayer .trace").count() == 0
    assert not page.locator("#rows input[type=checkbox]").first.is_checked()


def test_links_lead_to_the_run_folders(opened, file):
    page = opened()
    link = page.locator("#rows a").first
    assert link.evaluate("a => a.href") == (file.parent / "runs" / link.inner_text()).as_uri() + "/"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_body_never_scrolls_sideways(opened, width, scheme):
    page = opened(width, scheme)
    for panel in range(page.locator("#panel option").count()):
        page.select_option("#panel", str(panel))
        assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator("#box").evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert box[0] > box[1]  # the table scrolls inside its box
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back))) < 200) == (scheme == "dark")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_words_in_the_search_field_are_not_clipped(opened, width):
    page = opened(width)
    room, needed = page.locator("#search").evaluate("""field => {
        const style = getComputedStyle(field), pen = document.createElement("canvas").getContext("2d");
        pen.font = `${style.fontSize} ${style.fontFamily}`;
        const inside = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        return [inside, pen.measureText(field.placeholder).width];
    }""")
    assert needed < room


def test_epochs_are_seen_without_scrolling(opened):
    page = opened()
    page.locator("#search").fill("small CNN dctps done")
    assert set(cells(page, "epochs")) == {"3"}
    box, column = page.locator("#box").bounding_box(), head(page, "epochs").bounding_box()
    assert column["x"] + column["width"] <= box["x"] + box["width"]
    page.locator("#search").fill("counts")
    assert cells(page, "epochs") == [NONE]  # nothing was trained


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_that_scrolls_says_so(opened, width):
    page = opened(width)
    frame, hint = page.locator("#table .scroller"), page.locator("#table .hint")
    assert hint.inner_text() == "Scroll sideways for more columns →"
    edges = "frame => ['left', 'right', 'above', 'below'].filter((edge) => frame.classList.contains(edge))"
    assert frame.evaluate(edges) == ["right", "below"]
    page.locator("#box").evaluate("box => box.scrollTo(box.scrollWidth, box.scrollHeight)")
    page.wait_for_selector("#table .scroller.left.above:not(.right, .below)")
    page.locator("#search").fill("no run has these words")
    page.evaluate("document.querySelectorAll('#heads th').forEach((th, i) => { th.hidden = i > 1; })")
    page.wait_for_selector("#table .hint", state="hidden")  # it fits now
    assert frame.evaluate(edges) == []


def test_a_list_of_methods_that_scrolls_says_so(digits):
    assert not digits.locator("#accuracy-choices .hint").is_visible()  # four methods fit
    digits.add_style_tag(content=".choices { max-height: 60px !important; }")
    digits.wait_for_selector("#accuracy-choices .hint:not([hidden])")
    assert digits.locator("#accuracy-choices .hint").all_inner_texts() == ["Scroll for more methods ↓"]
    assert digits.locator("#accuracy-choices .scroller.below").count() == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_the_names_of_methods_are_explained_at_a_link_from_the_chart(opened, width):
    page = opened(width)
    page.locator("#accuracy a").click()
    terms = page.locator("#names dt").all_inner_texts()
    assert {"dense", "DCTpS", "EPL", "exact EPL", "SynFlow"} <= set(terms)
    assert page.locator("#names").bounding_box()["y"] < 900  # the page went there


def test_a_panel_whose_title_is_cut_has_it_in_full_below(opened):
    page = opened(390)
    title = page.locator("#panel option:checked").inner_text().rpartition(" (")[0]
    assert page.locator("#accuracy-note").inner_text().startswith(f"{title}: ")


def test_what_files_say_is_shown_and_not_run(opened):
    page = opened()
    page.select_option("#panel", label=next(t for t in page.locator("#panel option").all_inner_texts() if "MNIST" in t))
    point = page.locator("#accuracy-plot .scatterlayer .points path").last.bounding_box()
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    page.wait_for_selector("#accuracy-plot .hoverlayer .hovertext")
    assert EVIL in page.locator("#accuracy-plot .hoverlayer").text_content()  # Plotly would have made it bold
    page.locator("#search").fill("onerror=alert(2)")
    assert EVIL in page.locator("#rows").text_content()
    assert page.locator("img").count() == 0
    assert "<img src=x onerror=alert(1)>" in page.locator("#broken").text_content()


def test_even_injected_handlers_do_not_run(browser, file):
    """The page's policy is a second wall behind the escaping."""
    page = browser.new_page()
    page.goto(file.as_uri())
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        page.evaluate(
            """() => { document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.hit = 1'>"); }"""
        )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit === undefined")
    page.close()
