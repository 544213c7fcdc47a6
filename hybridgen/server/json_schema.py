"""msgspec types → JSON Schema, as OpenAPI 3.1 has it.

msgspec's own generator does not take ``msgspec.Raw``, which is how keys that are refused by value
are declared; and bounds that are checked after decoding are not in the types. So both come from the
caller, key by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import inspect

Schema = dict[str, Any]
Exact = Mapping[str, Schema]


class SchemaWriter:
    """Collects the schemas of structs as components that refer to each other.

    Args:
        exact: schemas that the types do not tell, by "Struct.key", "*.key" or "Struct". One of a
            key with a ``type``, ``enum``, ``anyOf`` or ``const`` replaces what the type says; any
            other is added to it.
        raw: values that a key of type ``Raw`` may have, for those that are not in ``exact``.

    Attributes:
        components: name of a struct → its schema.
    """

    def __init__(self, exact: Exact, raw: Mapping[str, Schema]) -> None:
        self.components: dict[str, Schema] = {}
        self._exact = exact
        self._raw = raw

    def ref(self, struct: type) -> Schema:
        """A reference to a struct, which is added to the components."""
        return self._struct(inspect.type_info(struct))

    def _struct(self, info: Any) -> Schema:
        name = info.cls.__name__
        if name not in self.components:
            schema: Schema = {"type": "object"}
            self.components[name] = schema
            schema["description"] = (info.cls.__doc__ or "").partition("\n\n")[0]
            schema["properties"] = {
                one.encode_name: self._key(f"{name}.{one.encode_name}", one) for one in info.fields
            }
            required = [one.encode_name for one in info.fields if one.required]
            if info.tag_field is not None:
                schema["properties"][info.tag_field] = {"const": info.tag}
                required.append(info.tag_field)
            if required:
                schema["required"] = required
            if info.forbid_unknown_fields:
                schema["additionalProperties"] = False
            schema |= self._exact.get(name, {})
        return {"$ref": f"#/components/schemas/{name}"}

    def _key(self, place: str, field: Any) -> Schema:
        exact = self._exact.get(place) or self._exact.get(f"*.{field.encode_name}", {})
        if exact.keys() & {"type", "enum", "anyOf", "const"}:
            return exact
        if isinstance(field.type, inspect.RawType):
            return self._raw.get(field.encode_name, {}) | exact
        return self._type(field.type, exact)

    def _type(self, info: Any, more: Schema) -> Schema:
        """``more`` goes to the first alternative that is not null."""
        schema: Schema = {}
        match info:
            case inspect.StructType():
                schema = self._struct(info)
            case inspect.UnionType():
                schema = {"anyOf": [self._type(one, more) for one in info.types]}
            case inspect.NoneType():
                schema = {"type": "null"}
            case inspect.BoolType():
                schema = {"type": "boolean"}
            case inspect.IntType() | inspect.FloatType():
                kind = "integer" if isinstance(info, inspect.IntType) else "number"
                schema = {"type": kind, **_bounds(info), **more}
            case inspect.StrType():
                schema = {"type": "string", **_lengths(info, "Length"), **_pattern(info), **more}
            case inspect.ListType():
                items = self._type(info.item_type, {})
                schema = {"type": "array", "items": items, **_lengths(info, "Items"), **more}
            case inspect.DictType():
                schema = {"type": "object", **_lengths(info, "Properties"), **more}
                schema["propertyNames"] = _lengths(info.key_type, "Length")
                schema["additionalProperties"] = self._type(info.value_type, {})
            case inspect.LiteralType():
                schema = {"enum": list(info.values)}
        return schema


def _pattern(info: Any) -> Schema:
    # The end of a text is written otherwise there: see NAME_PATTERN in hybridgen/tool.py.
    return {} if info.pattern is None else {"pattern": info.pattern.replace(r"\Z", "$")}


def _bounds(info: Any) -> Schema:
    names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
    return {names[k]: getattr(info, k) for k in names if getattr(info, k) is not None}


def _lengths(info: Any, what: str) -> Schema:
    ends = {f"min{what}": "min_length", f"max{what}": "max_length"}
    found = {name: getattr(info, end, None) for name, end in ends.items()}
    return {name: length for name, length in found.items() if length is not None}
