"""Connections: messages, windows, registered memory. verbena/rdma.h documents the calls and their errors."""

from __future__ import annotations

import ctypes
import enum
import itertools
import queue
import threading
import time
from typing import Any, Iterator, NamedTuple, Optional

from . import _abi, errors
from ._abi import calls
from ._memory import Buffer, BytesLike, Handle, Owner, callback, fill, milliseconds

_FIRST_BYTES = 65536
_LONGEST = 2**32 - 1
_DEFAULT_TIMEOUT = 5.0
_ENUMS = {'bootstrap': _abi.RDMA_BOOTSTRAP}


class Access(enum.IntFlag):
    """Rights of the peer to memory."""

    LOCAL = 0
    REMOTE_READ = 1
    REMOTE_WRITE = 2
    REMOTE_ATOMIC = 4
    REMOTE_ALL = 7


class Message(NamedTuple):
    """A message that arrived, or a notice that the peer wrote into this side's default window."""

    data: bytes  # Empty for a notice, and where the message went into a buffer of the caller's.
    immediate: Optional[int]
    length: int
    offset: Optional[int] = None  # A notice: where the bytes are in Connection.window().


class Memory(Owner):
    """Registered memory, which the NIC and the peer use. Connection.register and Listener.register make it. It lasts
    until it is closed or its connection or listener is."""

    def __init__(self, of: _Registrar, pointer: Any, pinned: Optional[Buffer]) -> None:
        # Its own handle is not in the table of handles that end by themselves: the connection's end frees it.
        self._of, self._pinned, self._pointer = of, pinned, pointer
        memory = pointer.contents
        self._begin: int = memory.addr
        self.length, self.lkey, self.rkey = memory.length, memory.lkey, memory.rkey
        self.access = Access(memory.access)
        self._handle = Handle('memory', memory.addr, self._deregister)
        self._token = of._token

    def __len__(self) -> int:
        return self.length

    def view(self) -> memoryview:
        """The bytes, without a copy. The peer may change them at any time. numpy.frombuffer takes it, too."""
        with self._of._handle, self._handle as address:
            return self._view_of(address, self.length, self._handle, self._of._handle)

    def array(self, dtype: Any = 'u1', shape: Any = -1) -> Any:
        """A numpy array over the bytes, without a copy. Needs numpy."""
        import numpy
        return numpy.frombuffer(self.view(), dtype=dtype).reshape(shape)

    def publish(self, name: str) -> None:
        """Lets the peer, or all clients of the listener, find it by Connection.lookup."""
        self._of._publish(name, self)

    def close(self) -> None:
        """Ends the registration. BusyError while views or operations use it; DeadlineError: a peer was still using it,
        so the memory is never used again."""
        code = self._handle.close()
        self._of._memories.discard(self)
        if code:
            raise errors.rdma_error(code)

    def _deregister(self, _: int) -> int:
        with self._of._handle as of:
            code = self._of._deregister(of, self._pointer)
        # A peer that was still using it may go on until the connection ends.
        if self._pinned is not None and code == 0:
            self._of._handle.pinned.remove(self._pinned)
            self._pinned.release()
        return code

    def _range(self, start: int, length: Optional[int]) -> int:
        """The length of a part of it that an operation may use."""
        length = self.length - start if length is None else length
        if start < 0 or length < 1 or start + length > self.length or length > _LONGEST:
            raise errors.own_error(errors.BAD_ARGUMENT, f'start and length must be a part of {self.length} bytes, of 1 '
                                   f'to {_LONGEST} bytes; got {start} and {length}')
        return length


class _Registrar(Owner):
    """What registers memory: a connection or a listener."""

    _allocate: Any
    _register: Any
    _deregister: Any
    _publisher: Any

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        # Strong references: memory whose object was dropped stays registered.
        self._memories: set[Memory] = set()

    def register(self, memory: int | BytesLike, access: Access = Access.REMOTE_ALL) -> Memory:
        """Registers memory. A number: so many bytes, allocated and zeroed, with all rights. Else a writable buffer of
        yours, such as a numpy array or a bytearray, which stays pinned until the memory is closed."""
        with self._handle as of:
            if isinstance(memory, int):
                if memory < 1:
                    raise errors.own_error(errors.BAD_ARGUMENT, f'memory has at least 1 byte; got {memory}')
                return self._keep(self._allocate(of, memory), None)
            pinned = Buffer(memory, writable=True)
            return self._keep(self._register(of, pinned.address, pinned.length, int(access)), pinned)

    def publish(self, name: str, memory: Optional[Memory]) -> None:
        """Publishes registered memory under a name of 1 to 64 bytes; None takes the name back."""
        self._publish(name, memory)

    def _keep(self, pointer: Any, pinned: Optional[Buffer]) -> Memory:
        if not pointer:
            raise errors.rdma_error(self._last_error())
        memory = Memory(self, pointer, pinned)
        self._memories.add(memory)
        if pinned is not None:
            self._handle.pinned.append(pinned)
        return memory

    def _last_error(self) -> int:
        """The code of a registration that failed; only connections tell it."""
        return errors.NO_MEMORY

    def _publish(self, name: str, memory: Optional[Memory]) -> None:
        with self._handle as of:
            if memory is None:
                _check(self._publisher(of, name.encode(), None))
                return
            with memory._handle:
                _check(self._publisher(of, name.encode(), memory._pointer))

    def close(self) -> None:
        super().close()
        for memory in self._memories:
            memory._handle._address = None
        self._memories.clear()


class Operation:
    """A transfer or an atomic that was started. Keeps its memory from being closed until it is complete."""

    def __init__(self, connection: Connection, cookie: int, memory: Optional[Memory]) -> None:
        self._connection, self._memory = connection, memory
        self._code: Optional[int] = None
        self._old = 0
        self.cookie = cookie

    def done(self) -> bool:
        """Whether its completion was collected, by a wait for this operation or a later one."""
        return self._code is not None

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits until it is complete; None: the connection's timeout. Returns the value before for atomics, else 0.
        DeadlineError: it is still under way. Other errors: why it failed."""
        self._connection._collect(self, timeout)
        assert self._code is not None
        if self._code != 0:
            raise errors.rdma_error(self._code, about_last_call=False)
        return self._old

    def _end(self, code: int, old: int) -> None:
        self._code, self._old = code, old
        if self._memory is not None:
            self._memory._handle.__exit__()
            self._memory = None


class Window:
    """Memory of the peer. Offsets are in bytes from its begin. Transfers are between it and registered memory of this
    side, without a copy: `start` and `length` choose a part of the memory, by default all of it."""

    def __init__(self, connection: Connection, window: _abi.RdmaWindow) -> None:
        self._connection, self._window = connection, window

    def __len__(self) -> int:
        return self._window.length

    @property
    def access(self) -> Access:
        return Access(self._window.access)

    def write(self, memory: Memory, offset: int = 0, *, start: int = 0, length: Optional[int] = None) -> None:
        """Writes registered memory to the window. Returns once the bytes are there."""
        self._sync(calls.rdmaSyncWriteSignaled, memory, offset, start, length)

    def read(self, memory: Memory, offset: int = 0, *, start: int = 0, length: Optional[int] = None) -> None:
        """Reads from the window into registered memory."""
        self._sync(calls.rdmaSyncReadSignaled, memory, offset, start, length)

    def fetch_add(self, offset: int, add: int) -> int:
        """Adds to eight bytes, aligned to 8, modulo 2^64. Returns the value before."""
        old = ctypes.c_uint64()
        with self._connection._handle as conn:
            _check(calls.rdmaSyncFetchAdd(conn, self._at(offset), self._window.rkey, add % 2**64, old))
        return old.value

    def compare_swap(self, offset: int, expected: int, desired: int) -> int:
        """Replaces `expected` with `desired`. Returns the value before: it was swapped if that is `expected`."""
        old = ctypes.c_uint64()
        with self._connection._handle as conn:
            _check(calls.rdmaSyncCompareSwap(conn, self._at(offset), self._window.rkey, expected % 2**64,
                                             desired % 2**64, old))
        return old.value

    def start_write(self, memory: Memory, offset: int = 0, *, start: int = 0,
                    length: Optional[int] = None) -> Operation:
        """Starts a write. Don't change the memory until the operation is complete. TryAgainError: 64 are under way."""
        return self._start(calls.rdmaStartWrite, memory, offset, start, length)

    def start_read(self, memory: Memory, offset: int = 0, *, start: int = 0,
                   length: Optional[int] = None) -> Operation:
        """Starts a read. Don't touch the memory until the operation is complete."""
        return self._start(calls.rdmaStartRead, memory, offset, start, length)

    def start_fetch_add(self, offset: int, add: int) -> Operation:
        """Starts an atomic; Operation.wait returns the value before."""
        return self._connection._start(None, lambda conn, cookie: calls.rdmaStartFetchAdd(
            conn, self._at(offset), self._window.rkey, add % 2**64, cookie))

    def start_compare_swap(self, offset: int, expected: int, desired: int) -> Operation:
        return self._connection._start(None, lambda conn, cookie: calls.rdmaStartCompareSwap(
            conn, self._at(offset), self._window.rkey, expected % 2**64, desired % 2**64, cookie))

    def _at(self, offset: int) -> int:
        if not 0 <= offset <= self._window.length:
            raise errors.own_error(errors.BAD_ARGUMENT, f'offset must be 0 to {self._window.length}; got {offset}')
        return self._window.addr + offset

    def _sync(self, call: Any, memory: Memory, offset: int, start: int, length: Optional[int]) -> None:
        length = memory._range(start, length)
        with memory._handle, self._connection._handle as conn:
            _check(call(conn, memory._begin + start, memory.lkey, self._at(offset), self._window.rkey, length))

    def _start(self, call: Any, memory: Memory, offset: int, start: int, length: Optional[int]) -> Operation:
        length = memory._range(start, length)
        at = self._at(offset)
        return self._connection._start(memory, lambda conn, cookie: call(
            conn, memory._begin + start, memory.lkey, at, self._window.rkey, length, cookie))


class Connection(_Registrar):
    """One end of a connection. Every call has the deadline `timeout`, in seconds, unless it takes its own. One thread
    at a time uses a client's connection (BusyError for a second one); any may use accepted ones."""

    _allocate = staticmethod(calls.rdmaConnRegMem)
    _register = staticmethod(calls.rdmaConnRegister)
    _deregister = staticmethod(calls.rdmaConnDeregMem)
    _publisher = staticmethod(calls.rdmaConnPublish)

    def __init__(self, handle: Handle, timeout: float) -> None:
        """`connect` and Listener.accept make connections."""
        super().__init__(handle)
        self._timeout = timeout
        self._room = ctypes.create_string_buffer(_FIRST_BYTES)
        self._receiving = threading.Lock()
        self._collecting = threading.Lock()
        self._cookies = itertools.count(1)
        self._operations: dict[int, Operation] = {}

    @property
    def timeout(self) -> float:
        """Deadline of calls, in seconds."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        with self._handle as conn:
            _check(calls.rdmaConnSetTimeout(conn, milliseconds(seconds)))
        self._timeout = seconds

    @property
    def connected(self) -> bool:
        """False once it is dead or closed."""
        if self.closed:
            return False
        with self._handle as conn:
            return calls.rdmaConnIsConnected(conn) == 1

    # --- messages -----------------------------------------------------------------------------------------------------

    def send(self, data: BytesLike, immediate: Optional[int] = None) -> None:
        """Sends a message of 1 byte to any length, with a number of 32 bits if you like."""
        with Buffer(data) as buffer, self._handle as conn:
            if immediate is None:
                sent = calls.rdmaConnSend(conn, buffer.address, buffer.length)
            else:
                sent = calls.rdmaConnSendWithImm(conn, immediate, buffer.address, buffer.length)
            self._check_bytes(conn, sent)

    def receive(self, timeout: Optional[float] = None) -> Message:
        """Takes the next message or notice. timeout in seconds; None: the connection's; 0: don't wait. DeadlineError:
        there is none, and nothing is lost."""
        limit = -1 if timeout is None else milliseconds(timeout)
        with self._receiving, self._handle as conn:
            message = _abi.RdmaMessage()
            code = calls.rdmaConnRecv(conn, self._room, len(self._room), message, limit)
            if code == errors.BUFFER_TOO_SMALL:
                # It stays queued, so the second call does not wait.
                self._room = ctypes.create_string_buffer(message.length)
                code = calls.rdmaConnRecv(conn, self._room, len(self._room), message, limit)
            _check(code)
            return self._message(conn, message)

    def receive_into(self, buffer: BytesLike, timeout: Optional[float] = None) -> Message:
        """Takes the next message into a writable buffer, such as a numpy array. ArgumentError: the message is longer,
        and stays queued."""
        limit = -1 if timeout is None else milliseconds(timeout)
        with self._receiving, Buffer(buffer, writable=True) as room, self._handle as conn:
            message = _abi.RdmaMessage()
            _check(calls.rdmaConnRecv(conn, room.address, room.length, message, limit))
            if message.kind == _abi.MESSAGE_WRITTEN:
                return self._message(conn, message)
            return Message(b'', message.imm if message.has_imm else None, message.length)

    def _message(self, conn: int, message: _abi.RdmaMessage) -> Message:
        immediate = message.imm if message.has_imm else None
        if message.kind == _abi.MESSAGE_SENT:
            return Message(ctypes.string_at(message.data, message.length), immediate, message.length)
        begin = calls.rdmaConnWindow(conn, None) or 0
        return Message(b'', immediate, message.length, (message.data or begin) - begin)

    # --- default windows ----------------------------------------------------------------------------------------------

    def window(self) -> memoryview:
        """This side's default window, without a copy. The peer may change it at any time."""
        with self._handle as conn:
            length = ctypes.c_size_t()
            address = calls.rdmaConnWindow(conn, length)
            if not address:
                raise errors.own_error(errors.NOT_FOUND, 'this connection has no default window: set window_bytes')
            return self._view_of(address, length.value, self._handle)

    def write(self, data: BytesLike, offset: int = 0, immediate: Optional[int] = None) -> None:
        """Writes any bytes into the peer's default window. With an immediate, the peer gets a notice, too."""
        with Buffer(data) as buffer, self._handle as conn:
            if immediate is not None:
                _check(calls.rdmaConnWriteWithImmAt(conn, immediate, offset, buffer.address, buffer.length))
                return
            self._check_bytes(conn, calls.rdmaConnWriteAt(conn, offset, buffer.address, buffer.length))

    def read(self, length: int, offset: int = 0) -> bytes:
        """Reads bytes of the peer's default window."""
        room = bytearray(length)
        self.read_into(room, offset)
        return bytes(room)

    def read_into(self, buffer: BytesLike, offset: int = 0) -> None:
        """Fills a writable buffer, such as a numpy array, from the peer's default window."""
        with Buffer(buffer, writable=True) as room, self._handle as conn:
            _check(calls.rdmaConnReadAt(conn, offset, room.address, room.length))

    def peer_window(self) -> Window:
        """The peer's default window. NotFoundError: it has none."""
        window = _abi.RdmaWindow()
        with self._handle as conn:
            _check(calls.rdmaConnPeerWindow(conn, window))
        return Window(self, window)

    def lookup(self, name: str, timeout: Optional[float] = None) -> Window:
        """Finds memory that the peer has published; waits until it has. NotFoundError: not in time."""
        window = _abi.RdmaWindow()
        with self._handle as conn:
            _check(calls.rdmaConnLookup(conn, name.encode(), window, -1 if timeout is None else milliseconds(timeout)))
        return Window(self, window)

    # --- operations that were started ---------------------------------------------------------------------------------

    def completions(self, timeout: Optional[float] = None) -> Iterator[Operation]:
        """Yields all operations under way as they complete, oldest first. `timeout` is for each."""
        while self._operations:
            oldest = next(iter(self._operations.values()), None)
            if oldest is None:
                return
            self._collect(oldest, timeout)
            yield oldest

    def _start(self, memory: Optional[Memory], start: Any) -> Operation:
        if memory is not None:
            memory._handle.__enter__()
        operation = Operation(self, next(self._cookies), memory)
        # Before it starts: a thread that collects may be quicker than this one.
        self._operations[operation.cookie] = operation
        try:
            with self._handle as conn:
                _check(start(conn, operation.cookie))
        except BaseException:
            del self._operations[operation.cookie]
            operation._end(errors.CLOSED, 0)
            raise
        return operation

    def _collect(self, wanted: Operation, timeout: Optional[float]) -> None:
        """Collects completions until `wanted` is complete."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        completion = _abi.RdmaCompletion()
        while not wanted.done():
            left = max(0.0, deadline - time.monotonic())
            if not self._collecting.acquire(timeout=left):
                raise errors.own_error(errors.TIMED_OUT, 'the operation is still under way: wait again')
            try:
                if wanted.done():
                    return
                with self._handle as conn:
                    _check(calls.rdmaConnComplete(conn, completion, milliseconds(left)))
                operation = self._operations.pop(completion.cookie)
                operation._end(completion.code, completion.old)
            finally:
                self._collecting.release()

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Tells the peer, ends operations under way, and frees the connection with its memory; again is fine.
        BusyError while views use memory of it, or another thread calls."""
        super().close()
        for operation in list(self._operations.values()):
            operation._end(errors.CLOSED, 0)
        self._operations.clear()

    def _check_bytes(self, conn: int, accepted: int) -> None:
        if accepted == 0:
            raise errors.rdma_error(calls.rdmaConnError(conn))

    def _last_error(self) -> int:
        with self._handle as conn:
            return calls.rdmaConnError(conn)


class Listener(_Registrar):
    """Accepts connections, with a thread of its own that drives them."""

    _allocate = staticmethod(calls.rdmaServerRegMem)
    _register = staticmethod(calls.rdmaServerRegister)
    _deregister = staticmethod(calls.rdmaServerDeregMem)
    _publisher = staticmethod(calls.rdmaServerPublish)

    def __init__(self, address: str = '', port: int = 0, *, timeout: float = _DEFAULT_TIMEOUT, **options: Any) -> None:
        """Starts it. Port 0 takes any free one. `options`: fields of RdmaOptions of verbena/rdma.h; bootstrap is "cm"
        or "socket"."""
        struct = _abi.RdmaOptions()
        calls.rdmaOptionsInit(struct)
        kept = fill(struct, {'timeout': timeout, **options}, _ENUMS)
        struct.recv_mode = _abi.RECV_QUEUE
        self._timeout = timeout
        self._accepted: queue.SimpleQueue[Optional[int]] = queue.SimpleQueue()
        listener = ctypes.c_void_p()
        _check(calls.rdmaServer(listener, address.encode(), port))
        on_accept = _on_accept(self._accepted)
        code = (calls.rdmaServerSetOptions(listener, struct) or calls.rdmaServerOnAccept(listener, on_accept, None)
                or calls.rdmaServerStart(listener))
        del kept
        if code != 0:
            error = errors.rdma_error(code)
            calls.rdmaServerRelease(listener)
            raise error
        super().__init__(Handle('listener', listener.value or 0, _release_listener(self._accepted, on_accept)))

    def close(self) -> None:
        """Ends it, with its connections and its memory; again is fine. BusyError while views or operations use its
        memory, or another thread calls."""
        for memory in self._memories:
            memory._handle.check_idle()
        super().close()

    @property
    def port(self) -> int:
        with self._handle as listener:
            return calls.rdmaServerPort(listener)

    @property
    def address(self) -> str:
        """The address for peers on any host."""
        room = ctypes.create_string_buffer(1024)
        with self._handle as listener:
            _check(calls.rdmaServerAddress(listener, room, len(room)))
        return room.value.decode()

    def accept(self, timeout: Optional[float] = None) -> Connection:
        """Waits for the next client; None: the listener's timeout. DeadlineError: none came. The connection outlives
        the listener's object, and is yours to close."""
        limit = self._timeout if timeout is None else timeout
        milliseconds(limit)
        try:
            conn = self._accepted.get(timeout=limit) if limit else self._accepted.get_nowait()
        except queue.Empty:
            raise errors.own_error(errors.TIMED_OUT, f'no client connected within {limit} s') from None
        if conn is None:
            self._accepted.put(None)  # For others that wait.
            raise errors.own_error(errors.CLOSED, 'the listener is closed: make another one')
        return Connection(Handle('connection', conn, calls.rdmaConnClose), self._timeout)


def _on_accept(accepted: queue.SimpleQueue[Optional[int]]) -> Any:
    """The callback, which the library calls in a thread of its own. It knows the queue only, so that it does not keep
    the listener."""
    @_abi.ACCEPTED
    def on_accept(conn: int, _: int) -> None:
        callback.is_running = True
        if calls.rdmaConnKeep(conn) == 0:
            accepted.put(conn)
        callback.is_running = False
    return on_accept


def _release_listener(accepted: queue.SimpleQueue[Optional[int]], on_accept: Any) -> Any:
    kept = [on_accept]

    def release(listener: int) -> None:
        calls.rdmaServerRelease(listener)
        kept.clear()
        while True:
            try:
                conn = accepted.get_nowait()
            except queue.Empty:
                break
            if conn is not None:
                calls.rdmaConnClose(conn)
        accepted.put(None)
    return release


def connect(address: str = '', port: int = 0, *, timeout: float = _DEFAULT_TIMEOUT, **options: Any) -> Connection:
    """Connects to a listener; address "": this host. `options`: fields of RdmaOptions of verbena/rdma.h, such as
    connect_timeout (seconds), device, window_bytes, key_file; bootstrap is "cm" or "socket"."""
    struct = _abi.RdmaOptions()
    calls.rdmaOptionsInit(struct)
    kept = fill(struct, {'timeout': timeout, **options}, _ENUMS)
    conn = calls.rdmaConn()
    if not conn:
        raise errors.own_error(errors.NO_MEMORY, 'there is no memory for a connection')
    code = calls.rdmaConnSetOptions(conn, struct) or calls.rdmaConnect(conn, address.encode(), port)
    del kept
    if code != 0:
        error = errors.rdma_error(code)
        calls.rdmaConnClose(conn)
        raise error
    return Connection(Handle('connection', conn, calls.rdmaConnClose), timeout)


def _check(code: int) -> None:
    if code != 0:
        raise errors.rdma_error(code)
