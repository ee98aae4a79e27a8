"""Accuracy against density: runs sorted into panels, lines of a method, and points that are means over seeds.

A panel is all that is not the method, the density or the seed. A mean is taken only over runs that differ in nothing
but the seed: where two runs of one method were carried out in different ways, their lines have different names.
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
from dctps.experiments.titles import data_title, network_title
from dctps.train.settings import Settings

OF_PRUNING = ("method_steps", "method_batches", "imp_rewind")
OF_REWIRING = ("rewire_every", "rewire_until", "drop_fraction")
_OF_METHOD = {"offset", "allocation", "method", "imp_round", "rewire", "projection", "norm_density", "alpha"}
_OF_METHOD |= {"train_alpha", "alpha_lr", *OF_PRUNING, *OF_REWIRING}
FIELDS = tuple(f.name for f in dataclasses.fields(Settings) if f.name not in _OF_METHOD | {"density", "seed"})
_TITLED = ("model", "data", "width", "hidden", "images", "epochs")  # these are in every title, where they are set
Key = tuple[Any, ...]


# --- panels ---------------------------------------------------------------------------------------------------------


def key(settings: Settings) -> Key:
    """What a panel shares. The paper trains DCTpS with SGD at a rate of its own, beside the others at theirs."""
    values = [getattr(settings, name) for name in FIELDS]
    if has_own_rate(settings):
        values[FIELDS.index("lr")] = SGD.lr
    return tuple(values)


def has_own_rate(settings: Settings) -> bool:
    sparse = settings.density is not None and settings.offset is not None and settings.projection is None
    return sparse and settings.optimizer == "sgd" and settings.lr == SGD_DCTPS_LR


def by_panel(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Sorted by network and data set."""
    groups = defaultdict[Key, list[Row]](list)
    for row in rows:
        groups[key(row.settings)].append(row)
    return dict(sorted(groups.items(), key=lambda item: [_sortable(value) for value in item[0]]))


def _sortable(value: Any) -> tuple[bool, str, Any]:
    """Settings of different types side by side: None comes first."""
    return value is not None, type(value).__name__, 0 if value is None else value


def titles(keys: Sequence[Key], trained: bool = True) -> list[str]:
    """Network, data set, and whatever else tells the panels apart.

    trained: whether the epochs matter.
    """
    names = _varying(keys)
    return [", ".join(_shown(dict(zip(FIELDS, one, strict=True)), names, trained)) for one in keys]


def _varying(keys: Sequence[Key]) -> list[str]:
    return [name for i, name in enumerate(FIELDS) if len({one[i] for one in keys}) > 1 and name not in _TITLED]


def _shown(values: dict[str, Any], varying: Sequence[str], trained: bool) -> Iterable[str]:
    yield network_title(values["model"])
    yield data_title(values["data"])
    for name in ("width", "hidden"):
        if values[name] is not None:
            yield f"{name} {values[name]}"
    if values["images"] is not None:
        yield f"{values['images']:,} images"
    if trained:
        yield f"{values['epochs']} epoch{'s' if values['epochs'] != 1 else ''}"
    yield from (f"{name} {_word(values[name])}" for name in varying)


def _word(value: Any) -> str:
    return str(value).removesuffix(".0")


def details(panel: Key, keys: Sequence[Key]) -> str:
    """The settings of a panel that are not in its title and differ from their defaults."""
    titled, defaults = {*_TITLED, *_varying(keys)}, Settings()
    pairs = [(name, value) for name, value in zip(FIELDS, panel, strict=True) if name not in titled]
    return ", ".join(f"{name} {_word(value)}" for name, value in pairs if value != getattr(defaults, name))


# --- lines ----------------------------------------------------------------------------------------------------------


def carried_out(settings: Settings) -> dict[str, Any]:
    """The settings of a method that its name does not tell, as far as they have an effect."""
    if settings.density is None:
        return {}
    names = [*(OF_PRUNING if settings.method else ()), *(OF_REWIRING if settings.rewire else ())]
    names += ["alpha_lr"] if settings.offset is not None and settings.projection is None else []
    return {name: getattr(settings, name) for name in names}


def by_line(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The runs of each method, by a name that is as long as it has to be."""
    groups = defaultdict[str, list[Row]](list)
    for row in rows:
        own = f", lr {row.settings.lr:g}" if has_own_rate(row.settings) else ""
        groups[method_name(row.settings) + own].append(row)
    lines = defaultdict[str, list[Row]](list)
    for name, members in groups.items():
        ways = [carried_out(row.settings) for row in members]
        varying = [n for n in ways[0] if len({way.get(n) for way in ways}) > 1]
        for row, way in zip(members, ways, strict=True):
            lines[", ".join([name, *(f"{n} {_word(way.get(n))}" for n in varying)])].append(row)
    return dict(sorted(lines.items(), key=lambda item: order(item[0])))


# --- points ---------------------------------------------------------------------------------------------------------


def accuracy_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What the page draws; `rows` are trainings."""
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
    """One for each density; that of the dense network is None."""
    groups = defaultdict[float | None, list[Row]](list)
    for row in rows:
        groups[row.settings.density].append(row)
    ordered = sorted(groups.items(), key=lambda item: item[0] or 0.0)
    return [{"density": density, **_point(_one_per_seed(members))} for density, members in ordered]


def _one_per_seed(rows: Iterable[Row]) -> list[Row]:
    """Runs of one line, density and seed differ in settings without effect alone: they are one observation."""
    return list({(row.settings.seed, row.status): row for row in rows}.values())


def _point(rows: Sequence[Row]) -> dict[str, Any]:
    done = [row for row in rows if row.status == DONE]
    weights = over_seeds(number(row.content, "weights", "got") for row in done)
    point: dict[str, Any] = {"n": len(done), "weights": rounded(weights.mean)}
    for kind in ("test", "validation"):
        found = over_seeds(accuracy(row, kind) for row in done)
        point |= {kind: rounded(found.mean), f"{kind}_deviation": rounded(found.deviation)}
    for status in (COLLAPSED, FAILED):
        point[status] = sum(row.status == status for row in rows)
    return point
