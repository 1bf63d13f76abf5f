"""Keep a JSON document whole: what a newer version wrote, and what no Unicode text is.

Room: step. Pure: documents in, documents out; knows nothing of their meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, object]


def unknown_to(known: object, document: object) -> Json:
    """Find what a document holds that this version does not write.

    Args:
        known: the document as this version writes it.
        document: as it was read.

    Returns:
        Each field that `known` lacks; under a field (or the number of a row) that it
        has, what is unknown inside. Empty where nothing is.
    """
    found: Json = {}
    written = _items(known)
    for key, value in _items(document).items():
        if key not in written:
            found[key] = value
        elif inner := unknown_to(written[key], value):
            found[key] = inner
    return found


def graft(known: object, unknown: Mapping[str, object]) -> object:
    """Put back into a document what `unknown_to` has found; its own fields win."""
    if not isinstance(known, dict | list):
        return known
    whole = _items(cast("object", known))
    for key, extra in unknown.items():
        inside = key in whole
        whole[key] = graft(whole[key], cast("Json", extra)) if inside else extra
    return whole if isinstance(known, dict) else list(whole.values())


def _items(value: object) -> Json:
    if isinstance(value, dict):
        return dict(cast("Json", value))
    if isinstance(value, list):
        rows = enumerate(cast("list[object]", value))
        return {str(number): row for number, row in rows}
    return {}


def printable(value: object) -> object:
    r"""Make every text in a document one that UTF-8 can spell.

    Bytes of a name or an argument that are no UTF-8 are shown as `\xNN`.
    """
    if isinstance(value, str):
        return _printable_text(value)
    if isinstance(value, dict):
        fields = cast("Json", value).items()
        return {_printable_text(key): printable(inner) for key, inner in fields}
    if isinstance(value, list):
        return [printable(inner) for inner in cast("list[object]", value)]
    return value


def _printable_text(text: str) -> str:
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, from somebody's JSON
        raw = text.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")
