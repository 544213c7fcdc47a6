"""The Jinja environment that chat templates run in: nothing reachable, everything bounded.

Jinja's immutable sandbox keeps templates away from Python's internals and from changing their
input. It does not bound work, so on top of it: sizes are checked *before* values are made (one
call into C cannot be interrupted), and only filters and methods that chat templates use and that
can be bounded exist at all.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from hybridgen.text.size_budget import SizeBudget, check_bits
from hybridgen.text.template_filters import CONCAT, SLICE, TemplateFilters

_STR_METHODS = frozenset(
    {
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha",
        "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join",
        "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
        "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
        "swapcase", "title", "upper",
    }
)  # fmt: skip
#: What Jinja adds to calls inside loops and blocks, for functions that ask for the context.
_JINJA_KWARGS = ("_loop_vars", "_block_vars")
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, _STR_METHODS),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple, range), frozenset({"count", "index"})),
    ((int, float, bytes), frozenset()),
)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """See the module's text. Options are those that chat templates are written for."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.budget = SizeBudget()
        self.finalize = self._finalize
        self.concat = self.budget.join  # type: ignore[method-assign]  # it is meant to be replaced
        self._filters = TemplateFilters(self.budget)
        self.filters = self._filters.table()
        del self.globals["lipsum"]

    def _finalize(self, value: Any) -> Any:
        self.budget.take_shown(value)
        return value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only the listed methods of built-in types; nothing private of anything."""
        for kinds, methods in _METHODS:
            if isinstance(obj, kinds):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, once its result is known to be small."""
        if operator == "%" and isinstance(left, str):
            raise SecurityError("text formatting with % is not available to templates")
        if operator == "+" and isinstance(left, str | list | tuple):
            num_right = len(right) if isinstance(right, str | list | tuple) else 0
            self.budget.take_like(left, len(left) + num_right)
        elif operator == "*":
            self._take_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * max(right, 1))
        return super().call_binop(context, operator, left, right)

    def _take_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() + right.bit_length())
        for value, factor in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(factor, int):
                self.budget.take_like(value, len(value) * max(factor, 0))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call, once its result is known to be small; names are out of the way of ``kwargs``."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "join":
                return __self._filters.join(args[0], owner)
            if __obj.__name__ == "replace":
                own = {key: value for key, value in kwargs.items() if key not in _JINJA_KWARGS}
                return __self._filters.replace(owner, *args, **own)
            num_parts = len(owner) if "split" in __obj.__name__ else 0
            __self.budget.take_text(len(owner) + num_parts)
        elif isinstance(owner, dict):
            __self.budget.take_items(len(owner))
        return super().call(__context, __obj, *args, **kwargs)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Jinja's hook for code generation: puts ``~`` and slices where they can be bounded."""
        return super()._generate(_OperatorsToFilters().visit(source), *args, **kwargs)


class _OperatorsToFilters(NodeTransformer):
    """Jinja compiles ``a ~ b`` and ``a[b:c]`` to plain Python, out of the sandbox's sight."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        first, *others = node.nodes
        return nodes.Filter(first, CONCAT, others, [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [node.arg.start, node.arg.stop, node.arg.step]
        arguments = [nodes.Const(None) if bound is None else bound for bound in bounds]
        return nodes.Filter(node.node, SLICE, arguments, [], None, None, lineno=node.lineno)


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}``: marks answers for training; here only its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
