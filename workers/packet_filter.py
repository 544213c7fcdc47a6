"""Small programs of the classic packet filter: the kernel drops what nobody should hear.

What is dropped was never acknowledged, so TCP sends it again: a connection that is heard later
loses nothing but time, some 0.2 s before the first repetition.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Iterable

# linux/filter.h: instructions (code, jump if true, jump if false, operand).
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_LOAD_WORD, _LOAD_BYTE, _LOAD_LENGTH = 0x20, 0x30, 0x80
_AND, _SHIFT_RIGHT, _TO_INDEX = 0x54, 0x74, 0x07
_IF_EQUAL, _IF_ABOVE_INDEX, _RETURN = 0x15, 0x2D, 0x06
_IP_HEADER = 0xFFF00000
"""Offsets from here on are into the IP header, others into the TCP header (SKF_NET_OFF)."""
_WHOLE = 0xFFFFFFFF
_IPV4_BYTES = 4
_IPV4, _IPV4_SOURCE_AT = 0x40, 12
_IPV6, _IPV6_SOURCE_AT = 0x60, 8

Instruction = tuple[int, int, int, int]
_DROP: Instruction = (_RETURN, 0, 0, 0)
_KEEP: Instruction = (_RETURN, 0, 0, _WHOLE)


def hear_nothing(connection: socket.socket) -> bool:
    """Drop whatever still arrives; False where the kernel cannot."""
    return _attach(connection, [_DROP])


def hear_again(one: socket.socket) -> None:
    """Drop nothing more; what was dropped comes again."""
    with contextlib.suppress(OSError):  # there was no filter, or the connection has ended
        one.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def hear_later(listener: socket.socket, networks: Iterable[bytes]) -> bool:
    """Drop what connections from there say: those that will be accepted inherit the filter.

    Args:
        listener: accepts as before.
        networks: IPv4 addresses, or first halves of IPv6 addresses, in network order.

    Returns:
        False where the kernel cannot.
    """
    program: list[Instruction] = [
        # A segment without data, one of a handshake say, passes: its header is all of it.
        (_LOAD_BYTE, 0, 0, 12),
        (_AND, 0, 0, 0xF0),
        (_SHIFT_RIGHT, 0, 0, 2),
        (_TO_INDEX, 0, 0, 0),
        (_LOAD_LENGTH, 0, 0, 0),
        (_IF_ABOVE_INDEX, 1, 0, 0),
        _KEEP,
    ]
    for network in networks:
        program += _drop_from(network)
    return _attach(listener, [*program, _KEEP])


def _drop_from(network: bytes) -> list[Instruction]:
    is_ipv4 = len(network) == _IPV4_BYTES
    version, source_at = (_IPV4, _IPV4_SOURCE_AT) if is_ipv4 else (_IPV6, _IPV6_SOURCE_AT)
    words = struct.unpack(f"!{len(network) // 4}I", network)
    num_left = 2 * len(words) + 1  # instructions to skip for another network
    program = [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_AND, 0, 0, 0xF0),
        (_IF_EQUAL, 0, num_left, version),
    ]
    for i, word in enumerate(words):
        num_left -= 2
        program.append((_LOAD_WORD, 0, 0, _IP_HEADER + source_at + 4 * i))
        program.append((_IF_EQUAL, 0, num_left, word))
    return [*program, _DROP]


def _attach(one: socket.socket, program: list[Instruction]) -> bool:
    instructions = b"".join(struct.pack("HBBI", *one) for one in program)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    try:
        one.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_FILTER,
            struct.pack("HP", len(program), ctypes.addressof(buffer)),
        )
    except OSError:
        return False
    return True
