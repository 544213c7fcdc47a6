"""What a request does with its tools: ``tools``, ``tool_choice``, ``parallel_tool_calls``."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.request import MAX_GRAMMAR_BYTES, Grammar, SamplingParams
from hybridgen.server.tool_support import ToolSupport
from hybridgen.text.tool_calls.call_grammar import CallGrammar
from hybridgen.tool import Function, FunctionName, Tool, ToolSpec, as_tools

#: Kinds of grammars that can be one of two ways to answer.
_JSON_KINDS = {"json_object", "json_schema"}
#: What the grammar is called that holds calls to their schemas and leaves all else free.
_FREE = "tools"


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the functions."""

    name: FunctionName


class NamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function to call."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice | None


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """Tools that the model is shown, and how its answer is read."""

    tools: list[Tool]
    support: ToolSupport
    choice: ToolChoice = None
    is_parallel: bool = True
    """More than one call is passed on."""

    @property
    def names(self) -> frozenset[str]:
        """Of the functions that are offered."""
        return frozenset(tool.function.name for tool in self.tools)

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be calls."""
        return self.choice not in {None, "auto"}

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """``params`` for an answer that may hold calls.

        Raises:
            InvalidRequest: the answer is held to another format that calls cannot be part of, or
                the tools make too large a grammar.
        """
        grammar = self._grammar(params.grammar)
        if grammar is not None and grammar is not params.grammar:
            _check_size(grammar)
        return msgspec.structs.replace(params, keep_tool_marks=True, grammar=grammar)

    def _grammar(self, format_: Grammar | None) -> Grammar | None:
        writer = CallGrammar(self.support.format, self.support.special_ids)
        functions = self._callable()
        if self.is_forced:
            if format_ is not None:
                raise InvalidRequest(
                    f"tool_choice asks for a call and {format_.param} for something else",
                    param=format_.param,
                    remedy="Leave one of the two out, or set tool_choice to auto",
                )
            is_parallel = self.is_parallel and self.choice == "required"
            return Grammar("lark", writer.forced(functions, is_parallel), "tool_choice")
        if format_ is not None:
            return self._either(writer, functions, format_)
        if any(function.strict for function in functions):
            return Grammar("lark", writer.free(functions, self.is_parallel), _FREE)
        return None

    def _either(self, writer: CallGrammar, functions: list[Function], format_: Grammar) -> Grammar:
        """Calls, or an answer in the format that is asked for."""
        if format_.kind not in _JSON_KINDS:
            raise InvalidRequest(
                f"{format_.param} leaves no room for calls of tools",
                param=format_.param,
                remedy="Leave one of the two out, or set tool_choice to none",
            )
        text = writer.either(functions, _schema_of(format_), is_parallel=self.is_parallel)
        return Grammar("lark", text, format_.param)

    def _callable(self) -> list[Function]:
        functions = [tool.function for tool in self.tools]
        if isinstance(self.choice, NamedChoice):
            wanted = self.choice.function.name
            return [function for function in functions if function.name == wanted]
        return functions


def may_reason(params: SamplingParams) -> bool:
    """Whether an answer may begin with reasoning: not where its first token keeps to a format."""
    return params.grammar is None or params.grammar.param == _FREE


def _check_size(grammar: Grammar) -> None:
    num_bytes = len(grammar.text.encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(
            "the schemas of the tools are too large for calls that are held to them",
            param="tools",
            value=f"{num_bytes} bytes of grammar",
            limit=f"{MAX_GRAMMAR_BYTES} bytes in all",
            remedy="Offer fewer tools or smaller schemas, or leave strict and tool_choice out",
        )


def _schema_of(format_: Grammar) -> dict[str, Any]:
    if format_.kind == "json_object":
        return {"type": "object"}
    try:
        schema = json.loads(format_.text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the JSON schema cannot be read: {error}", param=format_.param
        ) from None
    return schema if isinstance(schema, dict) else {} if schema else {"enum": []}


def read_tool_use(
    specs: list[ToolSpec] | None,
    choice: ToolChoice,
    is_parallel: bool | None,
    support: ToolSupport | None,
) -> ToolUse | None:
    """The tools of a body; None when the model is to be shown none.

    Raises:
        InvalidRequest: naming the key.
    """
    tools = as_tools(specs) if specs else []
    if not tools and choice not in {None, "none", "auto"}:
        raise InvalidRequest(
            "tool_choice needs tools", param="tool_choice", remedy="Send tools, or leave it out"
        )
    if not tools or choice == "none":
        return None
    if support is None:
        raise InvalidRequest(
            "how this model writes calls of tools is not known",
            param="tools",
            remedy="Start the server with --tool-call-parser NAME, or leave tools out",
        )
    use = ToolUse(tools=tools, support=support, choice=choice, is_parallel=is_parallel is not False)
    if isinstance(choice, NamedChoice) and choice.function.name not in use.names:
        raise InvalidRequest(
            "tool_choice names a function that is not among tools",
            param="tool_choice.function.name",
            value=choice.function.name,
            remedy="Name one of the tools",
        )
    return use
