"""Builds the native extensions; everything else about the package stands in setup.cfg."""

from glob import glob

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror=implicit"]


def native(
    name: str, *sources: str, depends: tuple[str, ...] = (), flags: tuple[str, ...] = ()
) -> Extension:
    """One extension module against the stable ABI of Python 3.11."""
    return Extension(
        name,
        sources=list(sources),
        depends=["ipc/layout.h", "ipc/wait.h", "ipc/words.h", *depends],
        include_dirs=["."],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        extra_compile_args=[*FLAGS, *flags],
        libraries=["m", "pthread"],
    )


setup(
    ext_modules=[
        native(
            "hybridgen.ipc._native",
            "ipc/_native.c",
            "ipc/atomics.c",
            "ipc/layout_table.c",
            "ipc/record_ring.c",
            depends=("ipc/atomics.h", "ipc/layout_table.h", "ipc/record_ring.h"),
        ),
        native(
            "hybridgen.sampling._native",
            *sorted(glob("hybridgen/sampling/*.c")),
            depends=tuple(sorted(glob("hybridgen/sampling/*.h"))),
            flags=("-ffp-contract=off",),  # the same token on every machine: see lanes.h
        ),
        native(
            "hybridgen.models._native",
            *sorted(glob("hybridgen/models/*.c")),
            depends=tuple(glob("hybridgen/models/*.h")),
            flags=("-ffp-contract=fast",),
        ),
    ]
)
