"""A client for a command: attached to a running tree, or to one started for this command alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hybridgen.client.client import Client
from hybridgen.errors import ConfigError
from hybridgen.launch.config_sources import ResolvedConfig
from hybridgen.launch.tree import start_tree


@contextlib.contextmanager
def client_for(resolved: ResolvedConfig, uri: str | None) -> Iterator[tuple[Client, str]]:
    """Yield a client and the address; a tree that was started here is stopped at the end.

    Args:
        resolved: configuration of the tree to start when ``uri`` is None.
        uri: of a running tree.

    Raises:
        ConfigError: both a model and a running tree were named.
        HybridGenError: the tree cannot start, or nobody is there.
    """
    config = resolved.config
    if uri is not None and resolved.sources["model"].startswith("flag"):
        raise ConfigError(
            "MODEL and --uri exclude each other",
            value=f"{config.model.model} and {uri}",
            remedy="Leave MODEL out: the running tree serves the model it was started with",
        )
    with contextlib.ExitStack() as stack:
        if uri is None:
            if sys.stderr.isatty():
                print(f"starting {config.model.model} …", file=sys.stderr)
            tree = stack.enter_context(start_tree(config, quiet=True))
            uri = tree.uri
        yield stack.enter_context(Client(uri)), uri
