"""`hybridgen chat [MODEL]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Optional

import typer

from hybridgen.errors import RequestError
from hybridgen.launch.config_command import PRIVATE_SECTIONS, config_command
from hybridgen.launch.config_sources import ResolvedConfig
from hybridgen.launch.exit_codes import EXIT_INTERRUPTED, EXIT_OK
from hybridgen.request import SamplingParams

PROMPT = "> "


def chat(
    resolved: ResolvedConfig,
    model_argument: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
    ] = None,
    *,
    question: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--question", "-q", help="Answer this and exit.", show_default=False),
    ] = None,
    system: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--system", help="System message.", show_default=False),
    ] = None,
    uri: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--uri", help="Use this running tree.", show_default=False),
    ] = None,
    show_tree: Annotated[
        bool, typer.Option("--show-tree", help="Print the process table first.")
    ] = False,
    sampling: SamplingParams,
) -> int:
    """Talk to a model: at a prompt, with -q TEXT once, or with a text from standard input.

    Without --uri a tree is started for the conversation and stopped after it. Temperature is 0.2
    and top-p 0.9 unless given.
    """
    del model_argument  # config_command has put it into the configuration
    from hybridgen.launch.attach import client_for
    from hybridgen.launch.conversation import Conversation
    from hybridgen.launch.process_table import print_tree

    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read().strip()
    with client_for(resolved, uri) as (client, address):
        if show_tree:
            print_tree(client.ps(), address)
            print()
        conversation = Conversation(client, sampling, system)
        if question is not None:
            return EXIT_INTERRUPTED if conversation.ask(question).is_cut else EXIT_OK
        return _converse(conversation.ask)


def _converse(ask: Callable[[str], object]) -> int:
    print("Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            question = input(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not question:
            continue
        try:
            ask(question)
        except RequestError as error:  # one question failed; the conversation goes on
            print(f"error: {error}", file=sys.stderr)


command = config_command(
    chat,
    sections=PRIVATE_SECTIONS,
    sampling_defaults=SamplingParams(temperature=0.2, top_p=0.9),
)
