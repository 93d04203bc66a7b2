"""Connections: a listener and clients in this process."""

import array
import gc
import threading
import unittest

import verbena
from support import DEVICE, PATIENCE_S, numpy_or_skip, waits_for
from verbena import Access, errors


class RdmaTest(unittest.TestCase):
    def setUp(self):
        self.listener = verbena.Listener('127.0.0.1', device=DEVICE, timeout=PATIENCE_S, window_bytes=4096)
        self.addCleanup(self.listener.close)
        self.conn, self.peer = self.pair()
        self.addCleanup(self.peer.close)
        self.addCleanup(self.conn.close)

    def pair(self):
        conn = verbena.connect('127.0.0.1', self.listener.port, device=DEVICE, timeout=PATIENCE_S, window_bytes=4096)
        return conn, self.listener.accept()

    def test_messages_both_ways(self):
        for message in (b'1', bytearray(b'two'), array.array('i', [1, 2, 3]), bytes(range(256)) * 1000):
            self.conn.send(message)
            arrived = self.peer.receive()
            self.assertEqual(arrived.data, bytes(memoryview(message)))
            self.assertEqual((arrived.length, arrived.immediate, arrived.offset), (len(arrived.data), None, None))
        self.peer.send(b'back', immediate=7)
        room = bytearray(6)
        self.assertEqual(self.conn.receive_into(room), verbena.Message(b'', 7, 4))
        self.assertEqual(room, b'back\0\0')
        self.peer.send(b'longer than that')
        with self.assertRaises(errors.ArgumentError):
            self.conn.receive_into(room)
        self.assertEqual(self.conn.receive().data, b'longer than that')
        with self.assertRaises(errors.ArgumentError):
            self.conn.send(b'')

    def test_deadlines(self):
        with self.assertRaises(errors.DeadlineError) as caught:
            self.conn.receive(timeout=0)
        self.assertIsInstance(caught.exception, TimeoutError)
        with self.assertRaises(errors.DeadlineError):
            self.conn.receive(timeout=0.001)
        with self.assertRaises(errors.DeadlineError):
            self.listener.accept(timeout=0)
        with self.assertRaises(errors.DeadlineError):
            self.listener.accept(timeout=0.001)
        with self.assertRaises(errors.NotFoundError):
            self.conn.lookup('nothing', timeout=0.001)
        self.conn.timeout = 0.001
        with self.assertRaises(errors.DeadlineError):
            self.conn.receive()
        with self.assertRaises(errors.ArgumentError):
            self.conn.timeout = -1

    def test_default_windows(self):
        self.conn.write(b'hello', 100)
        self.assertEqual(self.conn.read(5, 100), b'hello')
        window = self.peer.window()
        self.assertEqual(len(window), 4096)
        self.assertEqual(bytes(window[100:105]), b'hello')
        window[0:4] = b'here'
        room = bytearray(4)
        self.conn.read_into(room)
        self.assertEqual(room, b'here')
        self.conn.write(b'notice', 8, immediate=9)
        notice = self.peer.receive()
        self.assertEqual(notice, verbena.Message(b'', 9, 6, 8))
        self.assertEqual(bytes(window[notice.offset:notice.offset + notice.length]), b'notice')
        with self.assertRaises(errors.ArgumentError) as caught:
            self.conn.write(b'beyond', 4095)
        self.assertEqual(caught.exception.code, errors.CODES['OUT_OF_RANGE'][0])
        for wrong in (2**64, -1):
            with self.assertRaises(errors.ArgumentError):
                self.conn.write(b'at the begin', wrong)
            with self.assertRaises(errors.ArgumentError):
                self.conn.read(4, wrong)
        self.assertEqual(bytes(window[0:4]), b'here')
        for wrong in (2**32, -1):
            with self.assertRaises(errors.ArgumentError):
                self.conn.send(b'1', immediate=wrong)
        with self.assertRaises(errors.BusyError):
            self.peer.close()
        window.release()

    def test_registered_memory_and_windows(self):
        there = self.listener.register(4096)
        self.listener.publish('numbers', there)
        view = there.view().cast('Q')
        view[3] = 40
        here = self.conn.register(64)
        mine = here.view().cast('Q')
        window = self.conn.lookup('numbers')
        self.assertEqual((len(window), window.access), (4096, Access.REMOTE_ALL))
        window.read(here, 24, length=8)
        self.assertEqual(mine[0], 40)
        mine[7] = 77
        window.write(here, 8, start=56)
        self.assertEqual(view[1], 77)
        self.assertEqual(window.fetch_add(24, 2), 40)
        self.assertEqual(window.compare_swap(24, 42, -1), 42)
        self.assertEqual(view[3], 2**64 - 1)
        for wrong in ((4096, 0, 1), (-8, 0, 8), (0, 60, 8), (0, -1, 8), (0, 0, 0)):
            with self.assertRaises(errors.ArgumentError):
                window.read(here, wrong[0], start=wrong[1], length=wrong[2])
        for memory, views in ((there, [view]), (here, [mine])):
            with self.assertRaises(errors.BusyError):
                memory.close()
            views.pop().release()
        del view, mine
        gc.collect()
        here.close()
        with self.assertRaises(errors.DisconnectedError):
            window.read(here, 0)
        self.listener.publish('numbers', None)
        there.close()
        there.close()
        with self.assertRaises(errors.DisconnectedError):
            there.view()

    def test_memory_of_ones_own(self):
        mine = bytearray(b'0123456789')
        memory = self.peer.register(mine, Access.REMOTE_READ)
        memory.publish('mine')
        with self.assertRaises(BufferError):
            mine.extend(b'it would move')
        got = self.conn.register(10)
        found = []
        # An accepted connection answers by the listener's thread.
        window = self.conn.lookup('mine')
        window.read(got)
        found.append(bytes(got.view()))
        self.assertEqual(found, [b'0123456789'])
        with self.assertRaises(errors.DeniedError):
            window.write(got)
        self.peer.publish('mine', None)
        memory.close()
        mine.extend(b'it may move')
        with self.assertRaises(BufferError):
            self.peer.register(b'read-only')
        with self.assertRaises(errors.ArgumentError):
            self.peer.register(0)

    def test_started_operations(self):
        there = self.listener.register(4096)
        there.publish('there')
        window = self.conn.lookup('there')
        here = self.conn.register(4096)
        with here.view() as view:
            view[:] = b'z' * 4096
        write = window.start_write(here, 0, length=64)
        with self.assertRaises(errors.BusyError):
            here.close()
        adds = [window.start_fetch_add(128, 5) for _ in range(10)]
        self.assertEqual(adds[-1].wait(), 45)
        self.assertTrue(write.done())
        self.assertEqual([add.wait() for add in adds], list(range(0, 50, 5)))
        swap = window.start_compare_swap(128, 50, 1)
        read = window.start_read(here, 0, start=64, length=64)
        self.assertEqual(list(self.conn.completions()), [swap, read])
        self.assertEqual(swap.wait(), 50)
        with here.view() as view:
            self.assertEqual(bytes(view[64:128]), b'z' * 64)
        with self.assertRaises(errors.TryAgainError):
            for _ in range(65):
                window.start_fetch_add(128, 0)
        self.assertEqual(len(list(self.conn.completions())), 64)
        self.assertEqual(list(self.conn.completions()), [])
        here.close()

    def test_an_operation_outlives_its_connection_harmlessly(self):
        conn, peer = self.pair()
        there = peer.register(4096)
        there.publish('there')
        here = conn.register(4096)
        operation = conn.lookup('there').start_write(here)
        conn.close()
        with self.assertRaises(errors.DisconnectedError):
            operation.wait()
        with self.assertRaises(errors.DisconnectedError):
            here.view()
        peer.close()

    def test_a_view_keeps_its_connection(self):
        conn, peer = self.pair()
        view = conn.register(1 << 16).view()
        handle = conn._handle
        del conn
        gc.collect()
        self.assertFalse(handle.is_closed)
        view[:] = b'v' * len(view)
        with self.assertWarns(ResourceWarning):
            del view
            gc.collect()
        self.assertTrue(handle.is_closed)
        with self.assertRaises(errors.DisconnectedError):
            peer.receive()
        peer.close()

    def test_garbage_in_a_cycle_is_not_used_after_free(self):
        class Holder:
            seen = []

            def __del__(self):
                Holder.seen.append(bytes(self.window[:4]) + bytes(self.memory[:4]))

        for _ in range(10):
            conn, peer = self.pair()
            window, memory = conn.window(), conn.register(1 << 16).view()
            memory[:4] = b'here'
            peer.write(b'from')
            # Younger than the connection: the collector runs finalizers by age.
            holder = Holder()
            holder.conn, holder.window, holder.memory, holder.cycle = conn, window, memory, holder
            del conn, window, memory, holder
            with self.assertWarns(ResourceWarning):
                gc.collect()
            peer.close()
        self.assertEqual(Holder.seen, [b'fromhere'] * 10)

    def test_many_threads_use_an_accepted_connection(self):
        def use(number):
            for each in range(20):
                self.peer.write(bytes([number, each]), 2 * number)
            ended.append(number)

        ended = []
        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        stop = threading.Event()

        # The peer of a client without callbacks goes on during the client's calls.
        def poll():
            while not stop.is_set():
                try:
                    self.conn.receive(timeout=0.01)
                except errors.DeadlineError:
                    pass

        poller = threading.Thread(target=poll)
        poller.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        stop.set()
        poller.join(PATIENCE_S)
        self.assertEqual(sorted(ended), [0, 1, 2, 3])
        with self.conn.window() as window:
            self.assertEqual(bytes(window[:8]), bytes([0, 19, 1, 19, 2, 19, 3, 19]))

    def test_closing_is_refused_during_a_call(self):
        def wait():
            try:
                self.conn.receive()
            except errors.VerbenaError as error:
                ended.append(error)

        ended = []
        thread = threading.Thread(target=wait)
        thread.start()
        self.assertTrue(waits_for(lambda: self.conn._handle._users))
        with self.assertRaises(errors.BusyError):
            self.conn.close()
        self.peer.send(b'wake up')
        thread.join(PATIENCE_S)
        self.assertEqual(ended, [])

    def test_the_other_end_closes(self):
        self.assertTrue(self.conn.connected)
        self.peer.close()
        with self.assertRaises(errors.DisconnectedError):
            self.conn.receive()
        self.assertFalse(self.conn.connected)
        with self.assertRaises(errors.DisconnectedError):
            self.peer.send(b'1')
        self.assertFalse(self.peer.connected)

    def test_a_listener_that_is_closed_wakes_who_waits(self):
        def wait():
            try:
                listener.accept()
            except errors.DisconnectedError:
                ended.append(True)

        ended = []
        listener = verbena.Listener('127.0.0.1', device=DEVICE, timeout=PATIENCE_S)
        self.assertTrue(listener.address)
        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        # Nobody accepts this one; it ends with the listener.
        nobody = verbena.Listener('127.0.0.1', device=DEVICE)
        conn = verbena.connect('127.0.0.1', nobody.port, device=DEVICE, timeout=PATIENCE_S)
        nobody.close()
        with self.assertRaises(errors.DisconnectedError):
            conn.receive()
        conn.close()
        listener.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(ended, [True, True])
        with self.assertRaises(errors.DisconnectedError):
            _ = listener.port

    def test_errors(self):
        with self.assertRaises(errors.DisconnectedError) as caught:
            verbena.connect('127.0.0.1', 1, device=DEVICE)
        self.assertEqual(caught.exception.code, errors.CODES['CONNECTION_REFUSED'][0])
        self.assertTrue(caught.exception.fix and caught.exception.detail)
        with self.assertRaises(errors.VerbenaError):
            verbena.connect('127.0.0.1', 1, device='no such device')
        with self.assertRaises(errors.ArgumentError):
            verbena.connect(bootstrap='pigeon')
        for option in ('node', 'recv_mode', 'timeout_ms', 'allowed_uid_count', 'color'):
            with self.assertRaises(TypeError):
                verbena.connect(**{option: 1})

    def test_numpy_without_a_copy(self):
        numpy = numpy_or_skip(self)
        field = numpy.arange(12, dtype='f8').reshape(3, 4)
        memory = self.listener.register(field)
        memory.publish('field')
        here = self.conn.register(field.nbytes)
        copy = here.array('f8', (3, 4))
        window = self.conn.lookup('field')
        window.read(here)
        self.assertTrue((copy == field).all())
        copy[1] = -1
        window.write(here)
        self.assertTrue((field[1] == -1).all())
        with self.assertRaises(errors.BusyError):
            here.close()
        del copy
        here.close()
        self.listener.publish('field', None)
        memory.close()
        self.conn.send(field)
        back = numpy.zeros((3, 4))
        self.assertEqual(self.peer.receive_into(back).length, field.nbytes)
        self.assertTrue((back == field).all())
        with self.assertRaises(BufferError):
            self.conn.send(field[:, 0])


if __name__ == '__main__':
    unittest.main()
