"""Where a value comes from: flag, environment, config file, the model's own hint, or default.

All sources are texts or plain values until here; one conversion with the bounds of config.py
checks them all, so a bad value is the same error wherever it stands, and names its source.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.formats.hybridgen_file import SUFFIX, read_hints
from hybridgen.launch.config_fields import (
    CONFIG_FILE_ENV,
    ENV_PREFIX,
    ConfigField,
    config_fields,
    section_types,
)

TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
FALSE_WORDS = frozenset({"false", "0", "no", "off"})


class Origin(NamedTuple):
    """A value as it was given, and where."""

    value: Any
    source: str


class ResolvedConfig(NamedTuple):
    """The configuration and the source of each value."""

    config: Config
    sources: dict[str, str]


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Path | None = None,
) -> ResolvedConfig:
    """Merge all sources; keys of ``flags`` are field names, absent or None when not given.

    Raises:
        ConfigError: an unknown key (with near matches), a value out of its bounds, a bad file.
        ModelError: the model is a .hybridgen file whose hints cannot be read.
    """
    if file is None and environment.get(CONFIG_FILE_ENV):
        file = Path(environment[CONFIG_FILE_ENV])
    origins: dict[str, Origin] = {}
    if file is not None:
        origins.update(read_file(file))
    origins.update(read_environment(environment))
    for name, value in flags.items():
        field = _known(name, "flag")
        if value is not None:
            origins[name] = Origin(value, f"flag {field.flag}")
    return _build(hints_for(origins) | origins)


def config_from_options(options: Mapping[str, Any]) -> Config:
    """A configuration from Python values by field name, with defaults for the rest.

    Raises:
        ConfigError: an unknown name (with near matches) or a value out of its bounds.
        ModelError: the model is a .hybridgen file whose hints cannot be read.
    """
    origins = {}
    for name, value in options.items():
        origins[_known(name, "option").name] = Origin(value, f"option {name}")
    return _build(hints_for(origins) | origins).config


def hints_for(origins: Mapping[str, Origin]) -> dict[str, Origin]:
    """Field name → value of what the chosen model advises, if it is a .hybridgen file.

    Raises:
        ModelError: it cannot be read.
    """
    chosen = origins.get("model")
    path = Path("" if chosen is None else str(chosen.value)).expanduser()
    # Whether the model is there at all is found out later, with a better text.
    if path.suffix != SUFFIX or not path.is_file():
        return {}
    given = read_hints(path).given.items()
    return {
        name: Origin(value, f"model {path.name}")
        for name, value in given
        if name in config_fields()
    }


def read_environment(environment: Mapping[str, str]) -> dict[str, Origin]:
    """Field name → value of every ``HYBRIDGEN_*`` option that is set.

    A variable that merely resembles an option is taken for a slip; others with the prefix may
    belong to somebody else.

    Raises:
        ConfigError: a variable that resembles an option.
    """
    by_env = {field.env: field for field in config_fields().values()}
    origins: dict[str, Origin] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_FILE_ENV:
            continue
        field = by_env.get(variable)
        if field is not None:
            origins[field.name] = Origin(value, f"environment {variable}")
            continue
        near = difflib.get_close_matches(variable, by_env, cutoff=0.85)
        if near:
            raise ConfigError(
                "an environment variable is not an option, but nearly one",
                value=variable,
                remedy=f"Did you mean {', '.join(near)}?",
            )
    return origins


def read_file(path: Path) -> dict[str, Origin]:
    """Field name → value of a TOML or JSON file: flat ``a-b`` keys, or tables named by section.

    Raises:
        ConfigError: unreadable, malformed, or with a key that is no option.
    """
    table = _load(path)
    origins: dict[str, Origin] = {}
    for key, value in table.items():
        if isinstance(value, dict) and key in section_types():
            items: Iterable[tuple[str, Any]] = value.items()
        else:
            items = [(key, value)]
        for name, item in items:
            field = _known(name.replace("-", "_"), f"key in {path}")
            origins[field.name] = Origin(item, f"file {path}")
    return origins


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the config file cannot be read: {error}",
            value=str(path),
            remedy="Give --config a readable TOML or JSON file",
        ) from None
    try:
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the config file is malformed: {error}",
            value=str(path),
            remedy="A name that ends in .json is read as JSON, any other as TOML",
        ) from None
    if not isinstance(table, dict):
        raise ConfigError(
            "the config file holds no table", value=str(path), remedy="Give it `key = value` pairs"
        )
    return table


def _known(name: str, where: str) -> ConfigField:
    fields = config_fields()
    if name in fields:
        return fields[name]
    near = difflib.get_close_matches(name, fields)
    keys = ", ".join(fields[match].key for match in near)
    raise ConfigError(
        f"unknown {where}",
        value=name.replace("_", "-"),
        remedy=f"Did you mean {keys}?" if near else "`hybridgen config show` lists all options",
    )


def _build(origins: Mapping[str, Origin]) -> ResolvedConfig:
    sections: dict[str, dict[str, Any]] = {name: {} for name in section_types()}
    sources: dict[str, str] = {}
    for name, field in config_fields().items():
        origin = origins.get(name)
        sources[name] = "default" if origin is None else origin.source
        if origin is not None:
            sections[field.section][name] = _convert(field, origin)
    return ResolvedConfig(msgspec.convert(sections, Config), sources)


def _convert(field: ConfigField, origin: Origin) -> Any:
    value = origin.value
    if field.is_switch and isinstance(value, str):
        value = _switch(value.strip().lower(), value)
    # Texts of flags and variables are numbers where numbers are wanted; files have real types.
    is_text = isinstance(value, str)
    try:
        return msgspec.convert(value, field.type, strict=not is_text)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{field.key} cannot be that ({origin.source})",
            value=value if isinstance(value, str | int | float | bool) else str(value),
            limit=field.type_text,
            remedy=f"Give {field.flag} a value inside the limit",
        ) from None


def _switch(word: str, value: str) -> bool | str:
    if word in TRUE_WORDS:
        return True
    return False if word in FALSE_WORDS else value
