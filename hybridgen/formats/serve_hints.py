"""What a model file advises for its own serving."""

from __future__ import annotations

from typing import Literal

import msgspec

from hybridgen.config import ModelSection, SchedulerSection
from hybridgen.errors import ConfigError
from hybridgen.memory_amount import bytes_of

KvCachePolicy = Literal["gpu", "hybrid", "park"]


class ServeHints(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Defaults under the names of their options; None has no opinion.

    An option that is given as a flag, in the environment or in a config file counts before them.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    prefill_chunk: int | None = None
    kv_cache_policy: KvCachePolicy | None = None
    """Where keys and values belong: all on the device; keys in host memory (``hybrid``); idle
    sequences in host memory (``park``). Not followed yet: all stay on the device."""
    cpu_kv_mem: str | None = None
    """Bytes of host memory for them, as 8GiB; ``hybrid`` and ``park`` need it. Not followed yet."""

    @property
    def given(self) -> dict[str, int | str]:
        """Name → value of those that have an opinion."""
        items = msgspec.structs.asdict(self).items()
        return {name: value for name, value in items if value is not None}

    def check(self) -> None:
        """Check the bounds, which are those of the options.

        Raises:
            ConfigError: naming the hint.
        """
        given = self.given
        for section in (ModelSection, SchedulerSection):
            names = given.keys() & set(section.__struct_fields__)
            try:
                msgspec.convert({name: given[name] for name in names}, section)
            except msgspec.ValidationError as error:
                raise ConfigError(
                    f"a hint for serving is out of its bounds: {error}",
                    value=", ".join(f"{name} {given[name]}" for name in sorted(names)),
                    remedy="Give it a value that the option of this name accepts",
                ) from None
        if self.cpu_kv_mem is not None:
            bytes_of(self.cpu_kv_mem, None, name="cpu_kv_mem")  # a share of which machine?
        elif self.kv_cache_policy in ("hybrid", "park"):
            raise ConfigError(
                "this KV cache policy needs host memory",
                value=f"kv_cache_policy {self.kv_cache_policy}",
                remedy="Add --cpu-kv-mem, as in --cpu-kv-mem 8GiB",
            )
