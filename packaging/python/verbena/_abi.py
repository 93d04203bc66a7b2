"""The C calls and structs that this package uses, as verbena/rdma.h and verbena/kv.h declare them.

tests/test_abi.py compares all of this with the headers: names, types and values. When a header gets a field or a code,
add it to its struct here or to errors.py; a call, to FUNCTIONS once this package uses it."""

from __future__ import annotations

import ctypes
import operator
import os
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

# Programs of another first or second number of the version may have other structs.
VERSION = (0, 1)
SONAME = 'libverbena.so.0'

MESSAGE_SENT, MESSAGE_WRITTEN = 0, 1
RECV_QUEUE = 1
RDMA_BOOTSTRAP = {'cm': 0, 'socket': 1}
CONN_MODE = {'cm': 0, 'socket': 1}
KV_EVICT = {'none': 0, 'lru': 1}
KV_LOOKUP = {'auto': 0, 'message': 1, 'one_sided': 2}


class RdmaOptions(ctypes.Structure):
    _fields_ = [
        ('device', c_char_p), ('bootstrap', c_uint), ('connect_timeout_ms', c_uint), ('timeout_ms', c_uint),
        ('max_connections', c_uint), ('recv_mode', c_uint), ('window', c_void_p), ('window_bytes', c_size_t),
        ('inbox_bytes', c_size_t), ('max_message_bytes', c_size_t), ('shared_window', c_int), ('gid_index', c_int),
        ('allowed_uids', ctypes.POINTER(c_uint)), ('allowed_uid_count', c_size_t), ('key_file', c_char_p),
        ('key_name', c_char_p), ('node', c_void_p)]


class RdmaMessage(ctypes.Structure):
    _fields_ = [('kind', c_uint), ('has_imm', c_int), ('imm', c_uint32), ('data', c_void_p), ('length', c_size_t)]


class RdmaMemory(ctypes.Structure):
    _fields_ = [('addr', c_void_p), ('length', c_size_t), ('lkey', c_uint32), ('rkey', c_uint32),
                ('access', c_uint32), ('memory_id', c_uint64)]


class RdmaWindow(ctypes.Structure):
    _fields_ = [('addr', c_uint64), ('length', c_uint64), ('rkey', c_uint32), ('access', c_uint32),
                ('memory_id', c_uint64)]


class RdmaCompletion(ctypes.Structure):
    _fields_ = [('cookie', c_uint64), ('operation', c_uint), ('code', c_int), ('old', c_uint64)]


class kv_client_options_t(ctypes.Structure):
    _fields_ = [
        ('device', c_char_p), ('gid_index', c_int), ('connect_timeout_ms', c_uint), ('timeout_ms', c_uint),
        ('depth', c_uint), ('buffer_bytes', c_size_t), ('spin_us', c_uint), ('allowed_uids', ctypes.POINTER(c_uint)),
        ('allowed_uid_count', c_size_t), ('key_file', c_char_p), ('key_name', c_char_p), ('lookup', c_uint),
        ('known_locations', c_size_t), ('read_only', c_int)]


class kv_cell_t(ctypes.Structure):
    _fields_ = [('address', c_uint64), ('worker', c_uint32), ('is_new', c_uint32)]


class kv_cursor_t(ctypes.Structure):
    _fields_ = [('place', c_uint64), ('moves', c_uint64), ('seal', c_uint64), ('worker', c_uint32),
                ('is_over', c_uint32)]


class kv_key_page_t(ctypes.Structure):
    _fields_ = [('count', c_uint32), ('length', c_uint32), ('bytes', ctypes.c_ubyte * 4064)]


class kv_get_item_t(ctypes.Structure):
    _fields_ = [('key', c_void_p), ('klen', c_size_t), ('buf', c_void_p), ('len', c_size_t), ('version', c_uint64),
                ('code', c_int)]


class kv_put_item_t(ctypes.Structure):
    _fields_ = [('key', c_void_p), ('klen', c_size_t), ('value', c_void_p), ('vlen', c_size_t), ('version', c_uint64),
                ('code', c_int)]


class kv_grant_t(ctypes.Structure):
    _fields_ = [('uid', c_uint), ('rights', c_uint), ('prefix', c_char_p), ('prefix_length', c_size_t),
                ('max_memory_bytes', c_size_t), ('max_items', c_size_t)]


class kv_server_options_t(ctypes.Structure):
    _fields_ = [
        ('mode', c_uint), ('device', c_char_p), ('gid_index', c_int), ('address', c_char_p), ('port', c_int),
        ('memory_bytes', c_size_t), ('require_hugepages', c_int), ('workers', c_uint), ('max_clients', c_uint),
        ('max_clients_per_user', c_uint), ('depth', c_uint), ('max_value_bytes', c_size_t), ('lease_bytes', c_size_t),
        ('trusted_clients', c_int), ('client_leases', c_uint), ('lease_term_ms', c_uint), ('max_items', c_size_t),
        ('checksum_large_values', c_int), ('grace_ms', c_uint), ('spin_us', c_uint), ('pin_workers', c_int),
        ('allowed_uids', ctypes.POINTER(c_uint)), ('allowed_uid_count', c_size_t), ('key_file', c_char_p),
        ('max_cells', c_size_t), ('grants', ctypes.POINTER(kv_grant_t)), ('grant_count', c_size_t),
        ('evict', c_uint)]


ACCEPTED = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)  # RdmaConnFunc
_MEMORY = ctypes.POINTER(RdmaMemory)
_WINDOW = ctypes.POINTER(RdmaWindow)
_KEY = [c_void_p, c_size_t]
_LONG = ctypes.POINTER(c_uint64)

# Result, then arguments. Handles and buffers are addresses.
FUNCTIONS = {
    'verbena_version': (c_char_p, []),
    'verbena_version_number': (c_uint, []),
    'rdmaErrorString': (c_char_p, [c_int]),
    'rdmaErrorDetail': (c_char_p, []),
    'rdmaOptionsInit': (None, [ctypes.POINTER(RdmaOptions)]),
    'rdmaServer': (c_int, [ctypes.POINTER(c_void_p), c_char_p, c_int]),
    'rdmaServerSetOptions': (c_int, [c_void_p, ctypes.POINTER(RdmaOptions)]),
    'rdmaServerOnAccept': (c_int, [c_void_p, ACCEPTED, c_void_p]),
    'rdmaServerStart': (c_int, [c_void_p]),
    'rdmaServerPort': (c_int, [c_void_p]),
    'rdmaServerAddress': (c_int, [c_void_p, ctypes.c_char_p, c_size_t]),
    'rdmaServerStop': (c_int, [c_void_p]),
    'rdmaServerRelease': (None, [c_void_p]),
    'rdmaServerRegMem': (_MEMORY, [c_void_p, c_size_t]),
    'rdmaServerRegister': (_MEMORY, [c_void_p, c_void_p, c_size_t, c_uint]),
    'rdmaServerDeregMem': (c_int, [c_void_p, _MEMORY]),
    'rdmaServerPublish': (c_int, [c_void_p, c_char_p, _MEMORY]),
    'rdmaConn': (c_void_p, []),
    'rdmaConnSetOptions': (c_int, [c_void_p, ctypes.POINTER(RdmaOptions)]),
    'rdmaConnect': (c_int, [c_void_p, c_char_p, c_int]),
    'rdmaConnKeep': (c_int, [c_void_p]),
    'rdmaConnClose': (None, [c_void_p]),
    'rdmaConnSetTimeout': (c_int, [c_void_p, c_uint]),
    'rdmaConnError': (c_int, [c_void_p]),
    'rdmaConnIsConnected': (c_int, [c_void_p]),
    'rdmaConnSend': (c_size_t, [c_void_p, c_void_p, c_size_t]),
    'rdmaConnSendWithImm': (c_size_t, [c_void_p, c_uint32, c_void_p, c_size_t]),
    'rdmaConnRecv': (c_int, [c_void_p, c_void_p, c_size_t, ctypes.POINTER(RdmaMessage), c_int]),
    'rdmaConnWriteAt': (c_size_t, [c_void_p, c_size_t, c_void_p, c_size_t]),
    'rdmaConnWriteWithImmAt': (c_int, [c_void_p, c_uint32, c_size_t, c_void_p, c_size_t]),
    'rdmaConnReadAt': (c_int, [c_void_p, c_size_t, c_void_p, c_size_t]),
    'rdmaConnWindow': (c_void_p, [c_void_p, ctypes.POINTER(c_size_t)]),
    'rdmaConnPeerWindowBytes': (c_size_t, [c_void_p]),
    'rdmaConnPeerWindow': (c_int, [c_void_p, _WINDOW]),
    'rdmaConnRegMem': (_MEMORY, [c_void_p, c_size_t]),
    'rdmaConnRegister': (_MEMORY, [c_void_p, c_void_p, c_size_t, c_uint]),
    'rdmaConnDeregMem': (c_int, [c_void_p, _MEMORY]),
    'rdmaConnPublish': (c_int, [c_void_p, c_char_p, _MEMORY]),
    'rdmaConnLookup': (c_int, [c_void_p, c_char_p, _WINDOW, c_int]),
    'rdmaSyncWriteSignaled': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, c_uint32, c_uint32]),
    'rdmaSyncReadSignaled': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, c_uint32, c_uint32]),
    'rdmaSyncFetchAdd': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, _LONG]),
    'rdmaSyncCompareSwap': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, c_uint64, _LONG]),
    'rdmaStartWrite': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, c_uint32, c_uint32, c_uint64]),
    'rdmaStartRead': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, c_uint32, c_uint32, c_uint64]),
    'rdmaStartFetchAdd': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, c_uint64]),
    'rdmaStartCompareSwap': (c_int, [c_void_p, c_uint64, c_uint32, c_uint64, c_uint64, c_uint64]),
    'rdmaConnComplete': (c_int, [c_void_p, ctypes.POINTER(RdmaCompletion), c_int]),
    'kv_error_string': (c_char_p, [c_int]),
    'kv_error_detail': (c_char_p, []),
    'kv_client_options_init': (c_int, [ctypes.POINTER(kv_client_options_t)]),
    'kv_client_put': (c_int, [c_void_p, *_KEY, c_void_p, c_size_t]),
    'kv_client_get_version': (c_int, [c_void_p, *_KEY, c_void_p, ctypes.POINTER(c_size_t), _LONG]),
    'kv_client_cas': (c_int, [c_void_p, *_KEY, c_uint64, c_void_p, c_size_t, _LONG]),
    'kv_client_delete': (c_int, [c_void_p, *_KEY]),
    'kv_client_cell_open': (c_int, [c_void_p, *_KEY, c_uint64, ctypes.POINTER(kv_cell_t)]),
    'kv_client_cell_fetch_add': (c_int, [c_void_p, ctypes.POINTER(kv_cell_t), c_uint64, _LONG]),
    'kv_client_cell_compare_swap': (c_int, [c_void_p, ctypes.POINTER(kv_cell_t), c_uint64, c_uint64, _LONG]),
    'kv_client_cell_read': (c_int, [c_void_p, ctypes.POINTER(kv_cell_t), _LONG]),
    'kv_client_put_ttl': (c_int, [c_void_p, *_KEY, c_void_p, c_size_t, c_int64]),
    'kv_client_get_ttl': (c_int, [c_void_p, *_KEY, ctypes.POINTER(c_int64)]),
    'kv_client_keys': (c_int, [c_void_p, *_KEY, ctypes.POINTER(kv_cursor_t), ctypes.POINTER(kv_key_page_t)]),
    'kv_key_page_next': (c_void_p, [ctypes.POINTER(kv_key_page_t), ctypes.POINTER(c_size_t),
                                    ctypes.POINTER(c_size_t)]),
    'kv_client_flush': (c_int, [c_void_p, *_KEY, _LONG]),
    'kv_client_allocate': (c_void_p, [c_void_p, c_size_t]),
    'kv_client_get_items': (c_int, [c_void_p, ctypes.POINTER(kv_get_item_t), c_size_t]),
    'kv_client_put_items': (c_int, [c_void_p, ctypes.POINTER(kv_put_item_t), c_size_t]),
    'kv_client_put_items_ttl': (c_int, [c_void_p, ctypes.POINTER(kv_put_item_t), c_size_t, c_int64]),
    'kv_server_options_init': (c_int, [ctypes.POINTER(kv_server_options_t)]),
    'kv_server_create': (c_void_p, [ctypes.POINTER(kv_server_options_t)]),
    'kv_server_start': (c_int, [c_void_p]),
    'kv_server_port': (c_int, [c_void_p]),
    'kv_server_stop': (c_int, [c_void_p]),
    'kv_server_destroy': (None, [c_void_p]),
    'kv_open_with': (c_int, [c_char_p, c_uint, ctypes.POINTER(kv_client_options_t), ctypes.POINTER(c_void_p)]),
    'kv_close': (c_int, [c_void_p]),
}


# What C's integers hold. ctypes would take a number of any size modulo 2^bits, so that a version of 2^64 + 1 were 1.
RANGES = {kind: (0, 2**(8 * ctypes.sizeof(kind)) - 1) for kind in (c_uint, c_uint32, c_uint64, c_size_t)}
RANGES |= {kind: (-2**(8 * ctypes.sizeof(kind) - 1), 2**(8 * ctypes.sizeof(kind) - 1) - 1) for kind in (c_int, c_int64)}


def check_range(what: str, kind: object, value: int) -> None:
    """ArgumentError unless C's `kind`, if that is an integer, holds the value."""
    if kind not in RANGES:
        return
    least, most = RANGES[kind]
    if not least <= operator.index(value) <= most:
        from . import errors
        raise errors.own_error(errors.BAD_ARGUMENT, f'{what} must be {least} to {most}; got {value}')


def _checked(name: str, call: Any, arguments: list) -> Any:
    """The call, with a range check of every integer among its arguments."""
    ranges = [(at, *RANGES[kind]) for at, kind in enumerate(arguments) if kind in RANGES]
    if not ranges:
        return call

    def checked(*values):
        for at, least, most in ranges:
            if not least <= values[at] <= most:
                check_range(f'argument {at + 1} of {name}', arguments[at], values[at])
        return call(*values)
    return checked


class Calls:
    """The loaded library; each call is an attribute under its name in the header."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            symbol = name if name.startswith('verbena_') else f'verbena_{name}'
            call = getattr(library, symbol)
            call.restype, call.argtypes = result, arguments
            setattr(self, name, _checked(name, call, arguments))

    def __getattr__(self, name: str):  # For type checkers: __init__ sets all calls.
        raise AttributeError(f'FUNCTIONS of verbena._abi has no {name}')


def load() -> Calls:
    path = os.environ.get('VERBENA_LIBRARY') or SONAME
    try:
        calls = Calls(path)
    except (OSError, AttributeError) as error:
        raise ImportError(f'verbena needs {SONAME}, built with -Ddefault_library=both (Debian: libverbena0); '
                          f'VERBENA_LIBRARY names it in another place: {error}') from error
    number = calls.verbena_version_number()
    if (number // 10000, number // 100 % 100) != VERSION:
        raise ImportError(f'{path} is version {calls.verbena_version().decode()}, and this package is made for '
                          f'{VERSION[0]}.{VERSION[1]}: install both of one version')
    return calls


calls = load()
