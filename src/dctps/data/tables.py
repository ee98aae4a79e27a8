"""Tables of texts and labels: CSV files with quotes, or TSV files, in which every character stands for itself.

A first row that has the name of a column is a header. A table of two columns may do without one: the text is before
the label.
"""

import csv
import io
from collections import Counter
from pathlib import Path

from dctps.data.dataset import DataError
from dctps.data.labelled import Labelled

SUFFIXES = {".csv": ",", ".tsv": "\t", ".txt": "\t"}  # what separates columns, by the end of the name
Row = tuple[int, list[str]]  # the number of the line, and its cells


def is_table(path: Path) -> bool:
    """Return whether a path is that of a table, by its name."""
    return path.suffix.lower() in SUFFIXES


def load_table(path: Path, text: str = "text", label: str = "label") -> Labelled:
    """Load the texts and labels of a table; text, label: the names of the columns, if it has a header."""
    rows = _rows(path)
    if not rows:
        raise DataError(f"{path} has no row")
    columns = _header(path, rows[0][1], text, label)
    if twice := [name for name in (text, label) if columns is not None and columns.count(name) > 1]:
        raise DataError(f"{path} has several columns {twice[0]!r}; rename all but the one that is meant")
    places = (0, 1) if columns is None else (columns.index(text), columns.index(label))
    if columns is None:
        _check_no_header(path, [cells[-1].strip() for _, cells in rows])
    rows, width = rows if columns is None else rows[1:], len(rows[0][1])
    if not rows:
        raise DataError(f"{path} has a header and no other row")
    for line, cells in rows:
        if len(cells) != width:
            raise DataError(f"{path}, line {line}: {len(cells)} columns, but the first row has {width}")
        if not cells[places[1]].strip():
            raise DataError(f"{path}, line {line}: the label is empty")
    return Labelled([cells[places[0]] for _, cells in rows], [cells[places[1]].strip() for _, cells in rows])


def _rows(path: Path) -> list[Row]:
    """Return the rows of a table that are not empty."""
    separator = SUFFIXES.get(path.suffix.lower())
    if separator is None:
        raise DataError(f"{path} is no table: its name has to end in {', '.join(SUFFIXES)}")
    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no table {path}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 (byte {error.start}); convert it") from None
    lines = io.StringIO(content, newline="")
    if separator == ",":
        reader = csv.reader(lines, strict=True)
    else:
        reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
    usual = csv.field_size_limit(max(csv.field_size_limit(), len(content)))  # texts may be of any length
    try:
        return [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: this cannot be read ({error})") from None
    finally:
        csv.field_size_limit(usual)


def _check_no_header(path: Path, labels: list[str]) -> None:
    """Raise DataError if the first row seems to be a header: its label is the only one that no other row has."""
    counts = Counter(labels)
    if len(labels) > 3 and [label for label, count in counts.items() if count == 1] == labels[:1]:
        raise DataError(
            f"{path}: the first row seems to be a header, because no other row has its label {labels[0][:40]!r}; name "
            "both columns by --text-column and --label-column"
        )


def _header(path: Path, first: list[str], text: str, label: str) -> list[str] | None:
    """Return the names of the columns; None if there is no header."""
    names = [cell.strip() for cell in first]
    if text in names and label in names:
        return names
    if len(names) == 2 and text not in names and label not in names:
        return None
    missing, flag = (text, "--text-column") if text not in names else (label, "--label-column")
    found = ", ".join(name[:40] for name in names[:8]) or "nothing"
    if len(names) < 2:
        separator = "tabs" if SUFFIXES[path.suffix.lower()] == "\t" else "commas"
        raise DataError(f"{path} has one column ({found}); a text and a label are needed, separated by {separator}")
    raise DataError(f"{path} has no column {missing!r}; its first row is: {found}; name the column by {flag}")
