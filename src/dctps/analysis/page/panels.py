"""Accuracy against density: panels of runs, lines of a method, and points that are means over seeds.

Runs of one panel share all settings except the method, the density and the seed. A mean is taken only over runs that
differ in the seed alone: where two runs of one method were carried out in different ways, their lines have different
names.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from dctps.analysis.page.looks import order
from dctps.analysis.page.values import accuracy, rounded
from dctps.experiments.naming import method_name
from dctps.experiments.numbers import number
from dctps.experiments.paper import SGD, SGD_DCTPS_LR
from dctps.experiments.results import Row
from dctps.experiments.status import COLLAPSED, DONE, FAILED
from dctps.experiments.summary import chance, over_seeds
from dctps.experiments.titles import setting_words
from dctps.train.settings import Settings

OF_PRUNING = ("method_steps", "method_batches", "imp_rewind")
OF_REWIRING = ("rewire_every", "rewire_until", "drop_fraction")
_OF_METHOD = {"offset", "allocation", "method", "imp_round", "rewire", "projection", "norm_density", "alpha"}
_OF_METHOD |= {"train_alpha", "alpha_lr", "values_lr", "frozen", *OF_PRUNING, *OF_REWIRING}
FIELDS = tuple(f.name for f in dataclasses.fields(Settings) if f.name not in _OF_METHOD | {"density", "seed"})
_TITLED = ("model", "data", "width", "hidden", "images", "epochs")  # every title has these, if they are set
Key = tuple[Any, ...]


# --- panels ---------------------------------------------------------------------------------------------------------


def key(settings: Settings) -> Key:
    """Return the settings that all runs of a panel share.

    The paper trains DCTpS with SGD at another learning rate than the other methods, in the same panel.
    """
    values = [getattr(settings, name) for name in FIELDS]
    if has_own_rate(settings):
        values[FIELDS.index("lr")] = SGD.lr
    return tuple(values)


def has_own_rate(settings: Settings) -> bool:
    """Return whether a run has the learning rate that the paper gives to DCTpS with SGD."""
    sparse = settings.density is not None and settings.offset is not None and settings.projection is None
    return sparse and settings.optimizer == "sgd" and settings.lr == SGD_DCTPS_LR


def by_panel(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Group the runs by panel, sorted by network and data set."""
    groups = defaultdict[Key, list[Row]](list)
    for row in rows:
        groups[key(row.settings)].append(row)
    return dict(sorted(groups.items(), key=lambda item: [_sortable(value) for value in item[0]]))


def _sortable(value: Any) -> tuple[bool, str, Any]:
    """Return a key that sorts settings of different types; None comes first."""
    return value is not None, type(value).__name__, 0 if value is None else value


def titles(keys: Sequence[Key], trained: bool = True) -> list[str]:
    """Return the title of each panel: network, data set, and whatever else tells the panels apart.

    trained: whether the title has the number of epochs.
    """
    names = _varying(keys)
    return [", ".join(_shown(dict(zip(FIELDS, one, strict=True)), names, trained)) for one in keys]


def _varying(keys: Sequence[Key]) -> list[str]:
    """Return the names of the settings that differ between panels and are not in every title."""
    return [name for i, name in enumerate(FIELDS) if len({one[i] for one in keys}) > 1 and name not in _TITLED]


def _shown(values: dict[str, Any], varying: Sequence[str], trained: bool) -> Iterable[str]:
    """Yield the parts of a panel's title."""
    always = _TITLED if trained else [name for name in _TITLED if name != "epochs"]
    yield from (setting_words(name, values[name]) for name in always if values[name] is not None)
    yield from (setting_words(name, values[name]) for name in varying)


def details(panel: Key, keys: Sequence[Key]) -> str:
    """Return, in words, the settings of a panel that are not in its title and differ from their defaults."""
    titled, defaults = {*_TITLED, *_varying(keys)}, Settings()
    pairs = [(name, value) for name, value in zip(FIELDS, panel, strict=True) if name not in titled]
    return ", ".join(setting_words(name, value) for name, value in pairs if value != getattr(defaults, name))


# --- lines ----------------------------------------------------------------------------------------------------------


def unnamed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of a method that its name does not tell, as far as they have an effect."""
    if settings.density is None:
        return {}
    names = [*(OF_PRUNING if settings.method else ()), *(OF_REWIRING if settings.rewire else ())]
    names += ["values_lr"] if settings.projection is None else []
    names += ["alpha_lr"] if settings.offset is not None and settings.projection is None else []
    return {name: getattr(settings, name) for name in names}


def by_line(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group the runs by method, under names that are as long as they must be to tell them apart."""
    groups = defaultdict[str, list[Row]](list)
    for row in rows:
        rate = [setting_words("lr", row.settings.lr)] if has_own_rate(row.settings) else []
        groups[", ".join([method_name(row.settings), *rate])].append(row)
    lines = defaultdict[str, list[Row]](list)
    for name, members in groups.items():
        ways = [unnamed_settings(row.settings) for row in members]
        varying = [n for n in ways[0] if len({way.get(n) for way in ways}) > 1]
        for row, way in zip(members, ways, strict=True):
            lines[", ".join([name, *(setting_words(n, way.get(n)) for n in varying)])].append(row)
    return dict(sorted(lines.items(), key=lambda item: order(item[0])))


# --- points ---------------------------------------------------------------------------------------------------------


def accuracy_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what the page draws of trainings, panel by panel."""
    drawn = [row for row in rows if row.settings.imp_round is None]
    groups = by_panel(drawn)
    keys = list(groups)
    return [
        {"title": title, "details": details(one, keys), **_panel(one, groups[one])}
        for title, one in zip(titles(keys), keys, strict=True)
    ]


def _panel(panel: Key, rows: Sequence[Row]) -> dict[str, Any]:
    lines = [{"name": name, "points": _points(members)} for name, members in by_line(rows).items()]
    return {
        "runs": len(rows),
        "failed": sum(row.status == FAILED for row in rows),
        "chance": chance(panel[FIELDS.index("data")]),
        "lines": lines,
    }


def _points(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a point for each density; the density of the dense network is None."""
    groups = defaultdict[float | None, list[Row]](list)
    for row in rows:
        groups[row.settings.density].append(row)
    ordered = sorted(groups.items(), key=lambda item: item[0] or 0.0)
    return [{"density": density, **_point(_one_per_seed(members))} for density, members in ordered]


def _one_per_seed(rows: Iterable[Row]) -> list[Row]:
    """Return one run for each seed: runs of one line, density and seed differ only in settings without effect."""
    return list({(row.settings.seed, row.status): row for row in rows}.values())


def _point(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the means over the runs of a point, and how many of them collapsed or failed."""
    done = [row for row in rows if row.status == DONE]
    weights = over_seeds(number(row.content, "weights", "got") for row in done)
    point: dict[str, Any] = {"n": len(done), "weights": rounded(weights.mean)}
    for kind in ("test", "validation"):
        found = over_seeds(accuracy(row, kind) for row in done)
        point |= {kind: rounded(found.mean), f"{kind}_deviation": rounded(found.deviation)}
    for status in (COLLAPSED, FAILED):
        point[status] = sum(row.status == status for row in rows)
    return point
