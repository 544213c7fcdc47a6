"""A model's weights → a ``.hybridgen`` file, by threads that take tensor after tensor.

One of them hashes the source meanwhile, and one more waits for the disk.

A piece of rows is read, turned into floats, un-permuted where its format permutes, checked, cast,
hashed and written to its place before the next is touched: memory stays at some megabytes per
thread, however large a tensor is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from hybridgen.formats.atomic_file import PREPARED_WEIGHTS, Purpose, atomic_file
from hybridgen.formats.convert_rows import TORCH_DTYPES, chunks, read_floats
from hybridgen.formats.hybridgen_file import (
    SCALES,
    DtypeName,
    SourceFacts,
    encode_file_header,
    file_metadata,
    stored_tensors,
)
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.safetensors_file import TensorType
from hybridgen.formats.stored_rows import RowReader, StoredRows, stored_rows
from hybridgen.formats.verify import file_sha256
from hybridgen.models.cuda.int8_rows import quantize_rows
from hybridgen.models.cuda.upload import move_thread
from hybridgen.models.weight_names import is_quantized

#: Called with the share done, 0 … 1.
Progress = Callable[[float], None]

#: More would wait for the disk, or for the interpreter's lock.
MAX_THREADS = 8
#: How often progress is told.
_TELL_S = 0.25
#: How often what is written so far is sent to the disk.
_FLUSH_S = 0.25


class Target(NamedTuple):
    """What is to be written, and where."""

    path: Path
    dtype: DtypeName
    is_int8: bool = False
    cpus: Collection[int] = ()
    """That threads may run on; empty: those of this process."""
    purpose: Purpose = PREPARED_WEIGHTS
    is_replacing: bool = True


def write_model(
    info: ModelInfo,
    target: Target,
    source: SourceFacts,
    *,
    hashed_files: tuple[Path, ...] = (),
    on_progress: Progress | None = None,
) -> None:
    """Write ``info`` with its weights to ``target``; it appears whole or not at all.

    Args:
        info: the model.
        target: the file.
        source: for the metadata, without hashes.
        hashed_files: files of the source whose SHA-256 goes into the metadata.
        on_progress: called by this thread, and at the end with 1.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: the source cannot be used.
        ConfigError: there is no space, or the folder cannot be written.
    """
    dtype, is_int8 = target.dtype, target.is_int8
    blank = msgspec.structs.replace(source, sha256={path.name: "0" * 64 for path in hashed_files})
    metadata = file_metadata(info, dtype, blank, is_int8=is_int8)
    header = encode_file_header(info, dtype, metadata, is_int8=is_int8)
    rows = stored_rows(info)
    tensors = stored_tensors(info.config, dtype, is_int8=is_int8)
    num_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    size_bytes = len(header) + num_bytes
    with (
        contextlib.closing(RowReader(rows)) as reader,
        atomic_file(
            target.path, size_bytes, target.purpose, is_replacing=target.is_replacing
        ) as fd,
    ):
        writer = _Writer(reader, fd, target, tensors, len(header))
        hashes = writer.run(rows, hashed_files, on_progress or (lambda _share: None), num_bytes)
        files = {path.name: hashes.pop(str(path)) for path in hashed_files}
        done = msgspec.structs.replace(source, sha256=files)
        metadata = file_metadata(info, dtype, done, is_int8=is_int8, hashes=hashes)
        _write_at(fd, encode_file_header(info, dtype, metadata, is_int8=is_int8), 0)
    if on_progress is not None:
        on_progress(1.0)


class _Stopped(Exception):
    """Another thread failed, or the whole work was interrupted."""


class _Writer:
    """Writes the tensors to their places in an open file, and remembers what they hash to."""

    def __init__(
        self,
        reader: RowReader,
        fd: int,
        target: Target,
        tensors: dict[str, TensorType],
        data_start: int,
    ) -> None:
        self._reader = reader
        self._fd = fd
        self._dtype = TORCH_DTYPES[target.dtype]
        self._is_int8 = target.is_int8
        self._cpus = set(target.cpus) or os.sched_getaffinity(0)
        self._tensors = tensors
        self._starts: dict[str, int] = {}
        for name, tensor in tensors.items():
            self._starts[name] = data_start
            data_start += tensor.num_bytes
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._num_done = 0
        self._hashes: dict[str, str] = {}

    def run(
        self,
        rows: dict[str, list[StoredRows]],
        hashed_files: tuple[Path, ...],
        on_progress: Progress,
        num_bytes: int,
    ) -> dict[str, str]:
        """Write everything; SHA-256 of each tensor by name and of each hashed file by path."""
        num_threads = min(MAX_THREADS, len(self._cpus))
        with (
            _one_torch_thread(),
            ThreadPoolExecutor(
                num_threads + 1, "convert", initializer=move_thread, initargs=(self._cpus,)
            ) as pool,
        ):
            try:  # a signal may come between any two lines, and the pool waits for its threads
                flush = pool.submit(self._flush)
                works = [pool.submit(self._hash_source, path) for path in hashed_files]
                # The largest first: at the end no thread is left alone with much of the work.
                works += [
                    pool.submit(self._write, name, rows[name])
                    for name in sorted(rows, key=lambda name: -self._tensors[name].num_bytes)
                ]
                self._watch(works, on_progress, num_bytes)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
            flush.result()
        return {name: self._hashes[name] for name in (*self._tensors, *map(str, hashed_files))}

    def _watch(self, works: list[Future[None]], on_progress: Progress, num_bytes: int) -> None:
        pending = set(works)
        while pending:
            done, pending = wait(pending, timeout=_TELL_S, return_when=FIRST_EXCEPTION)
            for work in done:
                work.result()
            if pending:
                on_progress(self._num_done / num_bytes)

    def _flush(self) -> None:
        # Else all of a file that fits the memory would wait for the end.
        while not self._stop.wait(_FLUSH_S):
            os.fdatasync(self._fd)

    def _hash_source(self, path: Path) -> None:
        self._hashes[str(path)] = file_sha256(path, self._check)

    def _write(self, name: str, parts: list[StoredRows]) -> None:
        if self._is_int8 and is_quantized(name, self._tensors[name].shape):
            self._write_int8(name, parts)
            return
        digest, place = hashlib.sha256(), self._starts[name]
        for piece in self._pieces(parts, self._dtype):
            place += self._put(piece, place, digest)
        self._hashes[name] = digest.hexdigest()

    def _write_int8(self, name: str, parts: list[StoredRows]) -> None:
        digest, place = hashlib.sha256(), self._starts[name]
        all_scales = []
        for piece in self._pieces(parts, torch.float32):
            values = torch.empty(piece.shape, dtype=torch.int8)
            scales = torch.empty(len(piece))
            quantize_rows(piece, values, scales)
            place += self._put(values, place, digest)
            all_scales.append(scales)
        self._hashes[name] = digest.hexdigest()
        digest = hashlib.sha256()
        self._put(torch.cat(all_scales), self._starts[name + SCALES], digest)
        self._hashes[name + SCALES] = digest.hexdigest()

    def _pieces(self, parts: list[StoredRows], dtype: torch.dtype) -> Iterator[torch.Tensor]:
        for rows in parts:
            for begin, end in chunks(rows):
                self._check()
                yield read_floats(self._reader, rows, begin, end, dtype)

    def _put(self, piece: torch.Tensor, place: int, digest: hashlib._Hash) -> int:
        """Bytes written."""
        data = piece.contiguous().view(torch.uint8).reshape(-1).numpy().data
        digest.update(data)
        _write_at(self._fd, data, place)
        with self._lock:
            self._num_done += data.nbytes
        return data.nbytes

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped


def _write_at(fd: int, data: bytes | memoryview, place: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(fd, left, place)
        left, place = left[count:], place + count


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Threads of this module that begin inside do their arithmetic alone: they are many already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
