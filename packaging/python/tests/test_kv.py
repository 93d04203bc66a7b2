"""The store: a server and clients in this process."""

import array
import gc
import itertools
import threading
import time
import unittest
import warnings

from support import DEVICE, PATIENCE_S, numpy_or_skip, waits_for

from verbena import errors, kv


class KvTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = kv.Server('127.0.0.1', device=DEVICE, memory_bytes=64 << 20, pin_workers=False, max_cells=4,
                               allowed_uids=[12345, 12346])

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def setUp(self):
        self.client = self.connect()
        self.addCleanup(self.client.close)

    def connect(self, **options):
        return kv.Client(f'127.0.0.1:{self.server.port}', device=DEVICE, timeout=PATIENCE_S, **options)

    def test_values_of_all_kinds_come_back(self):
        for value in (b'', b'hello', bytearray(b'a\0b'), memoryview(b'xyz')[1:], array.array('d', [1.5, 2.5]),
                      bytes(range(256)) * 400):
            self.client.put('key', value)
            self.assertEqual(self.client.get('key'), bytes(memoryview(value)))
        self.client[b'\0\xff'] = b'of bytes'
        self.assertEqual(self.client[b'\0\xff'], b'of bytes')
        self.assertEqual(self.client[bytearray(b'\0\xff')], b'of bytes')

    def test_a_missing_key_is_told_from_an_empty_value(self):
        self.client.put('empty', b'')
        self.assertEqual(self.client.get('empty'), b'')
        self.assertIn('empty', self.client)
        self.assertIsNone(self.client.get('none'))
        self.assertEqual(self.client.get('none', 7), 7)
        self.assertNotIn('none', self.client)
        with self.assertRaises(KeyError) as caught:
            _ = self.client['none']
        self.assertIsInstance(caught.exception, errors.NotFoundError)
        self.assertIn("'none'", str(caught.exception))

    def test_erase(self):
        self.client.put('erased', b'1')
        self.assertTrue(self.client.erase('erased'))
        self.assertFalse(self.client.erase('erased'))
        with self.assertRaises(errors.NotFoundError):
            del self.client['erased']

    def test_cas(self):
        first = self.client.cas('cas', b'1', 0)
        with self.assertRaises(errors.VersionMismatchError) as caught:
            self.client.cas('cas', b'2', 0)
        self.assertEqual(caught.exception.version, first)
        second = self.client.cas('cas', b'2', first)
        self.assertEqual(self.client.get_version('cas'), kv.Value(b'2', second))
        self.assertNotEqual(first, second)

    def test_keys_that_expire(self):
        self.client.put('expires', b'1', ttl=3600)
        self.assertTrue(0 < self.client.ttl('expires') <= 3600)
        self.client.put('expires', b'1')
        self.assertIsNone(self.client.ttl('expires'))
        with self.assertRaises(errors.NotFoundError):
            self.client.ttl('never put')
        for wrong in (0, -1, 1e20, float('nan'), float('inf')):
            with self.assertRaises(errors.ArgumentError):
                self.client.put('expires', b'2', ttl=wrong)
            with self.assertRaises(errors.ArgumentError):
                self.client.put_many([('expires', b'2')], ttl=wrong)
        self.client.put_many([('first', b'1'), ('second', b'2')], ttl=3600)
        self.assertTrue(0 < self.client.ttl('second') <= 3600)
        self.client.put('soon', b'1', ttl=0.001)
        self.assertTrue(waits_for(lambda: self.client.get('soon') is None))

    def test_prefixes(self):
        names = {f'prefix/{number}'.encode() for number in range(500)}
        self.client.put_many((name, b'1') for name in names)
        self.client.put('prefi', b'1')
        self.assertEqual(set(self.client.keys('prefix/')), names)
        self.assertLess(names, set(self.client.keys()))
        self.assertEqual(self.client.flush('prefix/'), 500)
        self.assertEqual(list(self.client.keys('prefix/')), [])
        self.assertIn('prefi', self.client)

    def test_cells(self):
        cell = self.client.cell('cell', 40)
        self.assertTrue(cell.is_new)
        self.assertEqual(cell.fetch_add(2), 40)
        self.assertEqual(cell.compare_swap(42, -1), 42)
        self.assertEqual(cell.compare_swap(42, 0), 2**64 - 1)
        self.assertEqual(cell.read(), 2**64 - 1)
        self.assertFalse(self.client.cell('cell').is_new)
        with self.assertRaises(errors.ArgumentError):
            self.client.put('cell', b'1')

    def test_get_into(self):
        self.client.put('into', b'12345678')
        room = bytearray(10)
        self.assertEqual(self.client.get_into('into', room), 8)
        self.assertEqual(room, b'12345678\0\0')
        with self.assertRaises(errors.ArgumentError) as caught:
            self.client.get_into('into', bytearray(7))
        self.assertEqual(caught.exception.code, errors.BUFFER_TOO_SMALL)
        with self.assertRaises(errors.NotFoundError):
            self.client.get_into('nothing', room)
        with self.assertRaises(BufferError):
            self.client.get_into('into', b'read-only')
        with self.assertRaises(BufferError):
            self.client.put('into', memoryview(b'123456')[::2])

    def test_numpy_without_a_copy(self):
        numpy = numpy_or_skip(self)
        field = numpy.arange(12, dtype='f8').reshape(3, 4)
        self.client.put('field', field)
        back = numpy.zeros((3, 4))
        self.assertEqual(self.client.get_into('field', back), back.nbytes)
        self.assertTrue((back == field).all())
        field.flags.writeable = False
        self.client.put('field', field)
        with self.assertRaises(BufferError):
            self.client.get_into('field', field)
        with self.assertRaises(BufferError):
            self.client.put('field', field[:, 1])
        room = numpy.frombuffer(self.client.allocate(80000), dtype='f8')
        room[:] = 3
        self.client.put('large', room)
        room[:] = 0
        self.assertEqual(self.client.get_into('large', room), 80000)
        self.assertTrue((room == 3).all())

    def test_batches_and_iterators(self):
        keys = [f'many/{number}' for number in range(700)]
        versions = self.client.put_many((key, key.encode() * 3) for key in keys)
        self.assertEqual(len(set(versions)), 700)
        self.client.erase('many/3')
        self.client.put('many/5', b'L' * 5000)
        found = dict(self.client.get_many(keys, value_bytes=40))
        self.assertEqual(list(found), keys)
        self.assertIsNone(found['many/3'])
        self.assertEqual(found['many/5'], b'L' * 5000)
        self.assertEqual(found['many/699'], b'many/699' * 3)
        self.assertEqual(list(self.client.get_many([])), [])

        with self.client.batch() as batch:
            put, got, none = batch.put('batch', b'1'), batch.get('batch'), batch.get('many/3')
            bad, other = batch.put('', b'1'), batch.put('other', bytearray(b'2'))
            with self.assertRaises(errors.BusyError):
                put.result()
        self.assertEqual(got.result(), kv.Value(b'1', put.result()))
        self.assertIsNone(none.result())
        self.assertTrue(other.done())
        self.assertIsNone(other.exception())
        self.assertIsInstance(bad.exception(), errors.ArgumentError)
        with self.assertRaises(errors.ArgumentError):
            bad.result()
        with self.assertRaises(errors.ArgumentError):
            self.client.put_many([('', b'1'), ('after', b'2')])
        self.assertEqual(self.client.get('after'), b'2')

    def test_errors_have_code_cause_and_fix(self):
        with self.assertRaises(errors.ArgumentError) as caught:
            self.client.put('k' * 1025, b'')
        self.assertIsInstance(caught.exception, ValueError)
        self.assertEqual(caught.exception.code, errors.CODES['BAD_KEY'][0])
        self.assertIn('1025', caught.exception.detail)
        self.assertGreater(len(caught.exception.fix), 10)
        self.assertIn(caught.exception.fix, str(caught.exception))
        with self.assertRaises(errors.DisconnectedError) as caught:
            kv.Client('127.0.0.1:1', device=DEVICE)
        self.assertIsInstance(caught.exception, ConnectionError)
        with self.assertRaises(errors.ArgumentError):
            self.connect(depth=1025)
        with self.assertRaises(errors.ArgumentError):
            self.connect(lookup='never')
        with self.assertRaises(errors.ArgumentError):
            kv.Client(mode='never')
        with self.assertRaises(TypeError):
            kv.Server(no_such_option=1)
        with self.assertRaises(errors.ArgumentError):
            kv.Server(device=DEVICE, workers=65)
        with self.assertRaisesRegex(errors.ArgumentError, 'trusted_clients was removed in 0.1'):
            kv.Server(device=DEVICE, trusted_clients=1)
        read_only = self.connect(read_only=True)
        self.addCleanup(read_only.close)
        with self.assertRaises(errors.DeniedError) as caught:
            read_only.put('key', b'')
        self.assertIsInstance(caught.exception, PermissionError)

    def test_numbers_that_c_does_not_hold(self):
        self.client.put('number', b'1')
        version = self.client.get_version('number').version
        for wrong in (version + 2**64, version - 2**64, -1):
            with self.assertRaises(errors.ArgumentError):
                self.client.cas('number', b'2', wrong)
        self.assertEqual(self.client.get('number'), b'1')
        for wrong in (-1, 2**64 + 8):
            with self.assertRaises(errors.ArgumentError):
                self.client.allocate(wrong)
            with self.assertRaises(errors.ArgumentError):
                list(self.client.get_many(['number'], value_bytes=wrong))
        for options in ({'depth': 2**32 + 8}, {'buffer_bytes': 2**64 + 2**20}, {'gid_index': 2**32},
                        {'allowed_uids': [2**32]}, {'known_locations': -1}):
            with self.assertRaises(errors.ArgumentError):
                self.connect(**options)
        with self.assertRaises(errors.ArgumentError):
            kv.Server('127.0.0.1', 2**32, device=DEVICE)
        for wrong in (7, 1.5, None, [1]):
            with self.assertRaises(TypeError):
                self.client.put(wrong, b'under zero bytes')
            with self.assertRaises(TypeError):
                self.client.get(wrong)

    def test_a_batch_beside_another_threads_call_is_no_success(self):
        def work():
            while not is_over.is_set():
                try:
                    client.put('other', b'v' * 4000)
                except errors.BusyError:
                    pass

        client, is_over, refused = self.connect(), threading.Event(), 0
        self.addCleanup(client.close)
        other = threading.Thread(target=work)
        other.start()
        try:
            begin = time.monotonic()
            for number in itertools.count():
                names = [f'beside/{number}/{each}' for each in range(3)]
                try:
                    client.put_many((name, b'1') for name in names)
                    self.assertEqual([self.client.get(name) for name in names], [b'1'] * 3)
                except errors.BusyError:
                    refused += 1
                if refused >= 20 or time.monotonic() - begin > PATIENCE_S:
                    break
        finally:
            is_over.set()
            other.join(PATIENCE_S)
        self.assertGreaterEqual(refused, 20)

    def test_a_deadline_is_a_timeout(self):
        for wrong in (-1, 1e9, float('nan')):
            with self.assertRaises(errors.ArgumentError):
                kv.Client(timeout=wrong)

    def test_a_closed_client(self):
        client = self.connect()
        with client:
            client.put('closed', b'')
        self.assertTrue(client.closed)
        client.close()
        with self.assertRaises(errors.DisconnectedError):
            client.get('closed')

    def test_a_client_with_views_is_not_closed(self):
        client = self.connect()
        view = client.allocate(4096)
        part = view[100:200]
        del view
        with self.assertRaises(errors.BusyError):
            client.close()
        part[:5] = b'hello'
        client.put('part', part[:5])
        self.assertEqual(client.get('part'), b'hello')
        part.release()
        client.close()
        self.assertTrue(client.closed)
        with self.assertRaises(errors.ResourceError):
            self.client.allocate(1 << 40)

    def test_a_view_keeps_its_client(self):
        client = self.connect()
        view = client.allocate(1 << 16)
        handle = client._handle
        del client
        gc.collect()
        self.assertFalse(handle.is_closed)
        view[:] = b'x' * len(view)
        with self.assertWarns(ResourceWarning):
            del view
        self.assertTrue(handle.is_closed)

    def test_garbage_in_a_cycle_is_not_used_after_free(self):
        class Reader:
            seen = []

            def __del__(self):
                # The collector may have finalized the client before; its memory must be there all the same.
                Reader.seen.append(bytes(self.view[:4]))
                self.view[:4] = b'gone'

        for _ in range(20):
            client = self.connect()
            view = client.allocate(1 << 16)
            view[:4] = b'here'
            handle = client._handle
            # Younger than the client: the collector runs finalizers by age.
            reader = Reader()
            reader.client, reader.view, reader.cycle = client, view, reader
            del reader, client, view
            with warnings.catch_warnings():
                warnings.simplefilter('ignore', ResourceWarning)
                gc.collect()
            self.assertTrue(handle.is_closed)
        self.assertEqual(Reader.seen, [b'here'] * 20)

    def test_threads_have_clients_of_their_own(self):
        def work(number):
            with self.connect() as client:
                for each in range(50):
                    client.put(f'thread/{number}', str(each).encode())
                done.append(client.get(f'thread/{number}'))

        done = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(done, [b'49'] * 4)


if __name__ == '__main__':
    unittest.main()
