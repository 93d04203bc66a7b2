"""The key-value store: clients, and a server within the process. verbena/kv.h documents the calls and their errors."""

from __future__ import annotations

import ctypes
from typing import Any, Generic, Iterable, Iterator, NamedTuple, Optional, TypeVar, overload

from . import _abi, errors
from ._abi import calls
from ._memory import Buffer, BytesLike, Handle, Key, Owner, fill, key_bytes

T = TypeVar('T')
_FIRST_BYTES = 4096
_KEYS_AT_ONCE = 256


class Value(NamedTuple):
    """A value and its version, for Client.cas."""

    data: bytes
    version: int


class Future(Generic[T]):
    """The result of an operation of a Batch, once the batch has run."""

    __slots__ = ('_result', '_error', '_is_done')

    def __init__(self) -> None:
        self._result: Any = None
        self._error: Optional[errors.VerbenaError] = None
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def exception(self) -> Optional[errors.VerbenaError]:
        self._check()
        return self._error

    def result(self) -> T:
        """Returns the result, or raises the operation's error. BusyError: the batch has not run."""
        self._check()
        if self._error is not None:
            raise self._error
        return self._result

    def _check(self) -> None:
        if not self._is_done:
            raise errors.own_error(errors.BUSY, 'the batch has not run: leave its with block, or call run()')

    def _end(self, result: Any, error: Optional[errors.VerbenaError] = None) -> None:
        self._result, self._error, self._is_done = result, error, True


def _ms(ttl: float) -> int:
    """A number that is none, or too large for C, is as wrong as 0."""
    return round(ttl * 1000) if abs(ttl) < 1e15 else 0


class Client(Owner):
    """A connected client. One thread at a time uses it: BusyError for a second one. Each call has the deadline
    `timeout`, in seconds."""

    def __init__(self, server: str = '', *, mode: str = 'cm', timeout: Optional[float] = None,
                 connect_timeout: Optional[float] = None, device: Optional[str] = None,
                 gid_index: Optional[int] = None, depth: Optional[int] = None, buffer_bytes: Optional[int] = None,
                 spin_us: Optional[int] = None, allowed_uids: Optional[Iterable[int]] = None,
                 key_file: Optional[str] = None, key_name: Optional[str] = None, lookup: Optional[str] = None,
                 known_locations: Optional[int] = None, read_only: Optional[bool] = None) -> None:
        """Connects to "host", "host:port", "[address]:port" or, with "", this host. mode: "cm" or "socket", as the
        server's. lookup: "auto", "message" or "one_sided". kv_client_options_t of verbena/kv.h has the others."""
        options = _abi.kv_client_options_t()
        calls.kv_client_options_init(options)
        kept = fill(options, {
            'timeout': timeout, 'connect_timeout': connect_timeout, 'device': device, 'gid_index': gid_index,
            'depth': depth, 'buffer_bytes': buffer_bytes, 'spin_us': spin_us, 'key_file': key_file,
            'allowed_uids': None if allowed_uids is None else list(allowed_uids), 'key_name': key_name,
            'lookup': lookup, 'known_locations': known_locations, 'read_only': read_only},
            {'lookup': _abi.KV_LOOKUP})
        handle = ctypes.c_void_p()
        _check(calls.kv_open_with(server.encode(), _mode(mode), options, handle))
        del kept
        super().__init__(Handle('client', handle.value or 0, calls.kv_close))
        self._room = ctypes.create_string_buffer(_FIRST_BYTES)

    def put(self, key: Key, value: BytesLike, ttl: Optional[float] = None) -> None:
        """Stores a value: any contiguous bytes, numpy arrays included; text must be encoded. ttl: seconds until the key
        is gone, at least a millisecond; None: it stays."""
        name = key_bytes(key)
        with Buffer(value) as data, self._handle as client:
            if ttl is None:
                _check(calls.kv_client_put(client, name, len(name), data.address, data.length))
                return
            _check(calls.kv_client_put_ttl(client, name, len(name), data.address, data.length, _ms(ttl)))

    def ttl(self, key: Key) -> Optional[float]:
        """Seconds that are left of the key's time to live; None: it does not expire. NotFoundError."""
        name, left_ms = key_bytes(key), ctypes.c_int64()
        with self._handle as client:
            _check(calls.kv_client_get_ttl(client, name, len(name), left_ms))
        return left_ms.value / 1000 if left_ms.value else None

    def keys(self, prefix: Key = b'') -> Iterator[bytes]:
        """Yields the keys that begin with a prefix, in no order: each that is there all the while at least once."""
        name, cursor, page = key_bytes(prefix), _abi.kv_cursor_t(), _abi.kv_key_page_t()
        while not cursor.is_over:
            with self._handle as client:
                _check(calls.kv_client_keys(client, name, len(name), cursor, page))
            at, length = ctypes.c_size_t(), ctypes.c_size_t()
            while key := calls.kv_key_page_next(page, at, length):
                yield ctypes.string_at(key, length.value)

    def flush(self, prefix: Key = b'') -> int:
        """Erases the keys that begin with a prefix, but no cells. Returns their number."""
        name, erased = key_bytes(prefix), ctypes.c_uint64()
        with self._handle as client:
            _check(calls.kv_client_flush(client, name, len(name), erased))
        return erased.value

    @overload
    def get(self, key: Key) -> Optional[bytes]: ...
    @overload
    def get(self, key: Key, default: T) -> bytes | T: ...

    def get(self, key, default=None):
        """Returns a copy of the value, or `default` if there is no such key."""
        value = self.get_version(key)
        return default if value is None else value.data

    def get_version(self, key: Key) -> Optional[Value]:
        """Returns the value with its version, or None if there is no such key."""
        name = key_bytes(key)
        with self._handle as client:
            version, length = ctypes.c_uint64(), ctypes.c_size_t()
            # Another client may make the value longer between two attempts, so a few are needed.
            for _ in range(16):
                room = self._room
                length.value = len(room)
                code = calls.kv_client_get_version(client, name, len(name), room, length, version)
                if code == 0:
                    return Value(ctypes.string_at(room, length.value), version.value)
                if code == errors.NOT_FOUND:
                    return None
                if code != errors.BUFFER_TOO_SMALL:
                    break
                self._room = ctypes.create_string_buffer(length.value)
            raise errors.kv_error(code)

    def get_into(self, key: Key, buffer: BytesLike) -> int:
        """Copies the value into `buffer`, a writable one such as a numpy array, and returns its length in bytes.
        NotFoundError; ArgumentError: the value is longer, and what the buffer holds is unspecified."""
        name = key_bytes(key)
        with Buffer(buffer, writable=True) as room, self._handle as client:
            length = ctypes.c_size_t(room.length)
            _check(calls.kv_client_get_version(client, name, len(name), room.address, length, None))
            return length.value

    def cas(self, key: Key, value: BytesLike, expected: int) -> int:
        """Stores the value if the key's version is `expected`; 0: if there is no such key. Returns the new version.
        VersionMismatchError: `version` is the current one, also 0 for a key that is gone."""
        name, version = key_bytes(key), ctypes.c_uint64()
        with Buffer(value) as data, self._handle as client:
            code = calls.kv_client_cas(client, name, len(name), expected, data.address, data.length, version)
            if code != 0:
                error = errors.kv_error(code)
                if isinstance(error, errors.VersionMismatchError):
                    error.version = version.value
                raise error
            return version.value

    def erase(self, key: Key) -> bool:
        """Removes a key. False: there was no such key."""
        name = key_bytes(key)
        with self._handle as client:
            code = calls.kv_client_delete(client, name, len(name))
            if code not in (0, errors.NOT_FOUND):
                raise errors.kv_error(code)
            return code == 0

    def __getitem__(self, key: Key) -> bytes:
        value = self.get_version(key)
        if value is None:
            raise errors.NotFoundError(errors.NOT_FOUND, calls.kv_error_string(errors.NOT_FOUND).decode(),
                                       f'no such key: {key!r}')
        return value.data

    def __setitem__(self, key: Key, value: BytesLike) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        name = key_bytes(key)
        with self._handle as client:
            _check(calls.kv_client_delete(client, name, len(name)))

    def __contains__(self, key: Key) -> bool:
        return self.get_version(key) is not None

    def cell(self, key: Key, initial: int = 0) -> Cell:
        """Opens a word of 64 bits under a key; makes it with `initial` if there is no such key."""
        name, place = key_bytes(key), _abi.kv_cell_t()
        with self._handle as client:
            _check(calls.kv_client_cell_open(client, name, len(name), initial % 2**64, place))
        return Cell(self, place)

    def allocate(self, length: int) -> memoryview:
        """Registered memory: large values in it are put without a copy. It is freed when the client is closed."""
        with self._handle as client:
            address = calls.kv_client_allocate(client, length)
            if not address:
                raise errors.own_error(errors.NO_MEMORY, f'{length} bytes are not left of buffer_bytes: '
                                       f'{calls.kv_error_detail().decode()}')
            return self._view_of(address, length, self._handle)

    def batch(self) -> Batch:
        """Operations that are in flight together: `with client.batch() as batch`."""
        return Batch(self)

    def get_many(self, keys: Iterable[Key], value_bytes: int = 1024) -> Iterator[tuple[Key, Optional[bytes]]]:
        """Yields each key with its value, or None, in order; many gets are in flight together. Values longer than
        `value_bytes` take one more call each. Raises the first error of another kind."""
        waiting: list[tuple[Key, Future[Optional[Value]]]] = []
        batch = Batch(self, value_bytes)

        def ended() -> Iterator[tuple[Key, Optional[bytes]]]:
            batch.run()
            for key, future in waiting:
                value = future.result()
                yield key, None if value is None else value.data
            waiting.clear()

        for key in keys:
            waiting.append((key, batch.get(key)))
            if len(waiting) == _KEYS_AT_ONCE:
                yield from ended()
        yield from ended()

    def put_many(self, items: Iterable[tuple[Key, BytesLike]], ttl: Optional[float] = None) -> list[int]:
        """Puts all items, many of them in flight together, and returns their versions. Raises the first error; the
        other items are carried out all the same. ttl: as in `put`."""
        futures = []
        batch = Batch(self, ttl=ttl)
        for key, value in items:
            futures.append(batch.put(key, value))
            if len(futures) % _KEYS_AT_ONCE == 0:
                batch.run()
        batch.run()
        return [future.result() for future in futures]


class Cell:
    """A word of 64 bits in the server, which the NICs change and read. Numbers are 0 to 2^64 - 1."""

    def __init__(self, client: Client, place: _abi.kv_cell_t) -> None:
        self._client, self._place = client, place

    @property
    def is_new(self) -> bool:
        """The call that opened it made it."""
        return self._place.is_new == 1

    def fetch_add(self, delta: int) -> int:
        """Adds, modulo 2^64, and returns the value before."""
        old = ctypes.c_uint64()
        with self._client._handle as client:
            _check(calls.kv_client_cell_fetch_add(client, self._place, delta % 2**64, old))
        return old.value

    def compare_swap(self, expected: int, desired: int) -> int:
        """Replaces `expected` with `desired`. Returns the value before: it was swapped if that is `expected`."""
        old = ctypes.c_uint64()
        with self._client._handle as client:
            _check(calls.kv_client_cell_compare_swap(client, self._place, expected % 2**64, desired % 2**64, old))
        return old.value

    def read(self) -> int:
        value = ctypes.c_uint64()
        with self._client._handle as client:
            _check(calls.kv_client_cell_read(client, self._place, value))
        return value.value


class Batch:
    """Puts and gets that are in flight together. `run`, or the end of the `with` block, carries out the puts, then the
    gets; operations of one kind on one key have no order. Don't change the values before. ttl: of all its puts."""

    def __init__(self, client: Client, value_bytes: int = 1024, ttl: Optional[float] = None) -> None:
        if not 0 <= value_bytes < 2**31:
            raise errors.own_error(errors.BAD_ARGUMENT, f'value_bytes must be 0 to 2^31 - 1; got {value_bytes}')
        self._client, self._value_bytes, self._ttl = client, value_bytes, ttl
        self._puts: list[tuple[bytes, BytesLike, Future[int]]] = []
        self._gets: list[tuple[bytes, Future[Optional[Value]]]] = []

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.run()

    def put(self, key: Key, value: BytesLike) -> Future[int]:
        """The result is the new version."""
        future: Future[int] = Future()
        self._puts.append((key_bytes(key), value, future))
        return future

    def get(self, key: Key) -> Future[Optional[Value]]:
        """The result is None if there is no such key."""
        future: Future[Optional[Value]] = Future()
        self._gets.append((key_bytes(key), future))
        return future

    def run(self) -> None:
        """Carries out the operations. Their errors are in the futures."""
        puts, self._puts = self._puts, []
        gets, self._gets = self._gets, []
        if puts:
            self._run_puts(puts)
        if gets:
            self._run_gets(gets)

    def _run_puts(self, puts: list[tuple[bytes, BytesLike, Future[int]]]) -> None:
        items = (_abi.kv_put_item_t * len(puts))()
        pinned = []
        try:
            for item, (key, value, _) in zip(items, puts):
                data = Buffer(value)
                pinned.append(data)
                item.key, item.klen = ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p), len(key)
                item.value, item.vlen = data.address, data.length
            with self._client._handle as client:
                if self._ttl is None:
                    code = calls.kv_client_put_items(client, items, len(items))
                else:
                    code = calls.kv_client_put_items_ttl(client, items, len(items), _ms(self._ttl))
        finally:
            for data in pinned:
                data.release()
        for item, (_, _, future) in zip(items, puts):
            future._end(item.version, _of_item(item.code, code))

    def _run_gets(self, gets: list[tuple[bytes, Future[Optional[Value]]]]) -> None:
        items = (_abi.kv_get_item_t * len(gets))()
        room = ctypes.create_string_buffer(max(1, self._value_bytes * len(gets)))
        begin = ctypes.addressof(room)
        for number, (item, (key, _)) in enumerate(zip(items, gets)):
            item.key, item.klen = ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p), len(key)
            item.buf, item.len = begin + number * self._value_bytes, self._value_bytes
        with self._client._handle as client:
            code = calls.kv_client_get_items(client, items, len(items))
        for item, (key, future) in zip(items, gets):
            if item.code == 0:
                future._end(Value(ctypes.string_at(item.buf, item.len), item.version))
            elif item.code == errors.NOT_FOUND:
                future._end(None)
            elif item.code == errors.BUFFER_TOO_SMALL:
                try:
                    future._end(self._client.get_version(key))
                except errors.VerbenaError as error:
                    future._end(None, error)
            else:
                future._end(None, _of_item(item.code, code))


class Server(Owner):
    """A server within this process, with threads of its own. Items are lost when it is closed."""

    def __init__(self, address: str = '', port: int = 0, *, memory_bytes: Optional[int] = None,
                 **options: Any) -> None:
        """Starts it. Port 0 takes any free one. `options`: fields of kv_server_options_t of verbena/kv.h, except
        grants; mode is "cm" or "socket", evict "none" or "lru"."""
        struct = _abi.kv_server_options_t()
        calls.kv_server_options_init(struct)
        kept = fill(struct, {'address': address, 'port': port, 'memory_bytes': memory_bytes, **options},
                    {'mode': _abi.CONN_MODE, 'evict': _abi.KV_EVICT})
        server = calls.kv_server_create(struct)
        del kept
        if not server:
            raise errors.kv_error(errors.BAD_ARGUMENT)
        code = calls.kv_server_start(server)
        if code != 0:
            error = errors.kv_error(code)
            calls.kv_server_destroy(server)
            raise error
        super().__init__(Handle('server', server, calls.kv_server_destroy))

    @property
    def port(self) -> int:
        with self._handle as server:
            return calls.kv_server_port(server)


def _check(code: int) -> None:
    if code != 0:
        raise errors.kv_error(code)


def _mode(name: str) -> int:
    if name not in _abi.CONN_MODE:
        raise errors.own_error(errors.BAD_ARGUMENT, f'mode is "cm" or "socket"; got {name!r}')
    return _abi.CONN_MODE[name]


def _of_item(code: int, of_batch: int) -> Optional[errors.VerbenaError]:
    """The error of an item. The thread's last sentence is about the item whose code the batch returned."""
    return errors.kv_error(code, code == of_batch) if code != 0 else None
