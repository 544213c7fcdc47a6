"""The filters of chat templates: those that such templates use, each bounded by a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Undefined

from hybridgen.text.size_budget import MAX_DEPTH, SizeBudget, SizeExceeded

MAX_JSON_INDENT = 8
#: Filters that stand for operators; not identifiers, so no template can name them.
CONCAT, SLICE = "concatenate operands", "slice operand"

#: Jinja's own, whose results are no larger than their input; they never turn values into text.
_PLAIN = (
    "abs", "count", "d", "default", "first", "float", "int", "last", "length", "map", "max", "min",
    "reject", "rejectattr", "round", "select", "selectattr",
)  # fmt: skip
#: Jinja's own that copy their input, a sequence or a mapping.
_COPYING = ("dictsort", "items", "list", "reverse", "sort", "unique")
#: Jinja's own that show their input as text first.
_SHOWING = ("capitalize", "lower", "title", "trim", "upper")


class TemplateFilters:
    """Filters that charge ``budget``; Jinja's HTML, layout and random ones are left out."""

    def __init__(self, budget: SizeBudget) -> None:
        self._budget = budget

    def table(self) -> dict[str, Callable[..., Any]]:
        """Filter name → function."""
        return {
            **{name: FILTERS[name] for name in _PLAIN},
            **{name: self._bounded(FILTERS[name]) for name in _COPYING},
            **{name: self._shown(FILTERS[name]) for name in _SHOWING},
            "indent": self.indent,
            "join": self.join,
            "replace": self.replace,
            "safe": lambda value: value,  # nothing is escaped, so nothing is unsafe
            "string": self.string,
            "tojson": self.tojson,
            CONCAT: self.concat,
            SLICE: self.slice,
        }

    def _bounded(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        position = _value_position(plain)

        def bounded(*args: Any, **kwargs: Any) -> Any:
            value = args[position]
            self._budget.take_items(len(value) if hasattr(value, "__len__") else 0)
            return plain(*args, **kwargs)

        return _marked_like(plain, bounded)

    def _shown(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def shown(value: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(self.string(value), *args, **kwargs)

        return shown

    def string(self, value: Any) -> str:
        """``value`` as text."""
        self._budget.take_shown(value)
        return str(value)

    def concat(self, *operands: Any) -> str:
        """``a ~ b ~ c``."""
        return self._budget.join([self.string(operand) for operand in operands])

    def slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """``value[start:stop:step]``, a copy."""
        part = slice(start, stop, step)
        if isinstance(value, str | list | tuple):
            self._budget.take_like(value, len(range(*part.indices(len(value)))))
        return value[part]

    def join(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        """Items as text with ``d`` between them."""
        if attribute is not None:
            raise SecurityError("join(attribute=…) is not available to templates")
        texts: list[str] = []
        for item in value:
            texts.append(self.string(item))
            self._budget.take_text(len(d))
        self._budget.take_text(sum(map(len, texts)) + len(d) * len(texts))
        return d.join(texts)

    def replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        """All, or the first ``count``, occurrences replaced."""
        text = self.string(value)
        num_found = text.count(old)
        num_replaced = num_found if count is None or count < 0 else min(num_found, count)
        self._budget.take_text(len(text) + num_replaced * max(0, len(new) - len(old)))
        return text.replace(old, new, num_replaced)

    def indent(
        self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        """Lines moved right."""
        text = self.string(value)
        width_chars = len(width) if isinstance(width, str) else width
        self._budget.take_text(len(text) + len(text.splitlines()) * max(0, width_chars))
        jinja_indent: Callable[..., str] = FILTERS["indent"]
        return jinja_indent(text, width, first, blank)

    def tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON without HTML escapes, as templates of the Hugging Face kind expect."""
        if indent is not None and not 0 <= indent <= MAX_JSON_INDENT:
            raise SizeExceeded(f"JSON indented by {indent}")
        if separators is not None and sum(map(len, separators)) > MAX_DEPTH:
            raise SizeExceeded("JSON with long separators")
        self._budget.take_shown(value)
        return json.dumps(
            None if isinstance(value, Undefined) else value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )


def _value_position(plain: Callable[..., Any]) -> int:
    """Some of Jinja's filters get the environment or context before their value."""
    return 1 if hasattr(plain, "jinja_pass_arg") else 0


def _marked_like(plain: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(plain, "jinja_pass_arg"):
        wrapper.jinja_pass_arg = plain.jinja_pass_arg  # type: ignore[attr-defined]  # Jinja's mark
    return wrapper
