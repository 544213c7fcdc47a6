"""Every option as data: its section, type, default and the text that stands under it in config.py.

Command line, environment, config files and docs/configuration.md are all made from this list, so
that nothing about an option is ever written twice.
"""

from __future__ import annotations

import ast
import functools
import inspect
import typing
from types import ModuleType
from typing import Any, Literal, NamedTuple

import msgspec

from hybridgen import config as config_module
from hybridgen.config import Config, Section

ENV_PREFIX = "HYBRIDGEN_"
#: Names the config file; not an option of the configuration itself.
CONFIG_FILE_ENV = "HYBRIDGEN_CONFIG"


class ConfigField(NamedTuple):
    """One option."""

    section: str
    """Attribute of ``Config``."""
    name: str
    """Attribute of the section; unique over all sections."""
    type: Any
    default: Any
    doc: str

    @property
    def flag(self) -> str:
        """``--a-b``."""
        return f"--{self.key}"

    @property
    def env(self) -> str:
        """``HYBRIDGEN_A_B``."""
        return f"{ENV_PREFIX}{self.name.upper()}"

    @property
    def key(self) -> str:
        """``a-b``, as config files have it."""
        return self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """True for options that are on or off."""
        return self.type is bool

    @property
    def type_text(self) -> str:
        """What is accepted, for people: ``int, 1 … 1024``, ``auto | cpu | cuda``."""
        return describe_type(self.type)


@functools.cache
def config_fields() -> dict[str, ConfigField]:
    """Name → option, in the order of config.py."""
    docs = field_docs(config_module)
    fields: dict[str, ConfigField] = {}
    for section, section_type in section_types().items():
        hints = typing.get_type_hints(section_type, include_extras=True)
        for info in msgspec.structs.fields(section_type):
            doc = docs[section_type.__name__, info.name]
            fields[info.name] = ConfigField(section, info.name, hints[info.name], info.default, doc)
    return fields


def section_types() -> dict[str, type[Section]]:
    """Attribute of ``Config`` → section, in order."""
    hints = typing.get_type_hints(Config)
    return {name: hints[name] for name in Config.__struct_fields__}


def section_doc(section: str) -> str:
    """First line of a section's docstring."""
    return inspect.getdoc(section_types()[section]) or section


def describe_type(annotation: Any) -> str:
    """A type with its bounds, for people."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(annotation))
    if origin is typing.Annotated:
        base, meta = typing.get_args(annotation)[:2]
        if meta.description is not None:
            return str(meta.description)
        if meta.ge is not None and meta.le is not None:
            return f"{base.__name__}, {meta.ge:,} … {meta.le:,}"
        return f"{base.__name__}, at least {meta.ge:,}" if meta.ge is not None else base.__name__
    return "true | false" if annotation is bool else str(annotation.__name__)


def field_docs(module: ModuleType) -> dict[tuple[str, str], str]:
    """(class, field) → the string that stands under the field in the module's source."""
    docs: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[node.name, field.target.id] = inspect.cleandoc(str(text.value.value))
    return docs
