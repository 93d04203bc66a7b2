#!/usr/bin/env python3
"""Mistakes for the simulation to find: protections of src/, taken out one at a time.

usage: mutate.py make SOURCE OUTPUT   writes SOURCE with all its mistakes, of which none is made
       mutate.py names OUTPUT         writes their names and scenarios, a C++ initializer and a comma each
       mutate.py check ROOT FILE...   the table fits the sources, and has mistakes in these files and no others

Meson compiles the units that have mistakes in place of those in src/. `verbena-simulate --mutant NAME` makes one of
them, `--mutants` each in its turn; without either the units do what they do in src/.
"""

import dataclasses
import pathlib
import sys


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str   # Below src/.
    old: str    # Occurs once. A statement ends with a newline; what does not is an expression.
    new: str
    scenario: str = 'store'  # That has to find it.


MARK = '  if (!is_new) retire(item_of(*entry));\n'
LIVE = '  store_word(header(item).state, state_word(ItemState::kLive, version));\n'
PUBLISH = '  store_word(*entry, word);\n'

MUTANTS = {
    # --- what readers look at

    'no_checksum_check': Mutant(
        'kv/item.cpp', 'checksum_of(bytes.data(), shape.bytes(), version) != header.checksum', 'false'),
    'no_state_check': Mutant(
        'kv/item.cpp', 'state_of(header.state) != ItemState::kLive || version == 0', 'version == 0'),
    # A remembered place may have another key's item now.
    'no_key_check': Mutant(
        'kv/item.cpp', 'std::memcmp(bytes.data() + sizeof header, key.data(), key.size()) != 0', 'false'),
    # The second look at the item of a large value.
    'no_version_check': Mutant(
        'kv/gets.cpp', '!is_live(state, operation.outcome.version)', 'state_of(state) != ItemState::kLive'),
    'no_second_look': Mutant('kv/reader.cpp', 'is_live(state, item.version) && is_intact', 'is_intact'),
    # Of a value that was told by message: its block may be another value's by now.
    'late_pieces_believed': Mutant('kv/gets.cpp', 'ticks_now() - operation.sent_ticks > links_.read_ticks()', 'false'),

    # --- what the writer stores, and in which order

    'never_superseded': Mutant('kv/store.cpp', '    store_word(old.state, superseded);\n', ''),
    'never_superseded_large': Mutant(
        'kv/store.cpp', '  (void)std::atomic_ref(old.state).exchange(superseded, std::memory_order_seq_cst);\n', ''),
    'mark_after_publish': Mutant(
        'kv/store.cpp', MARK + LIVE + PUBLISH,
        '  const std::uint64_t before = *entry;\n' + LIVE + PUBLISH + '  if (!is_new) retire(item_of(before));\n'),
    # The index changes last, as it should; but the place of the new item may be known already.
    'mark_after_live': Mutant('kv/store.cpp', MARK + LIVE + PUBLISH, LIVE + MARK + PUBLISH),
    # A large value's expected version was looked at before its bytes came; others were at work meanwhile.
    'commit_trusts_reserve': Mutant(
        'kv/session.cpp', 'store_.commit(large_.pending, large_.expected)',
        'store_.commit(large_.pending, wire::kAnyVersion)'),
    # Both cells of a worker are at the same place.
    'cell_not_counted': Mutant('kv/cells.cpp', '  ++made_;\n', ''),
    # An entry's other bucket is that of the bucket where it is.
    'moved_to_another_bucket': Mutant(
        'kv/store.cpp', 'other_bucket(from, tag_of_entry(index_[from][slot]), index_.size())',
        'other_bucket(second, tag_of_entry(index_[from][slot]), index_.size())'),

    # An item that moves for another size.
    'moved_item_not_indexed': Mutant('kv/store.cpp', '  store_word(*entry, entry_for(to, hash));\n', ''),

    # --- values that expire, and are evicted

    # A client thinks that the server began just now.
    'clock_too_early': Mutant(
        'kv/gets.cpp', 'reader_.clock().set(reply.expiry.clock_ns, operation.sent_ticks)',
        'reader_.clock().set(0, operation.sent_ticks)'),
    'server_trusts_time': Mutant('kv/store.cpp', 'until_of(item) <= clock_ns()', 'false'),

    # --- memory that may not be reused yet

    # Readers by message have nothing but time to go by.
    'no_grace': Mutant(
        'kv/store.cpp',
        'old.server != 0 && stamp(now_) <= old.server + (options_.grace_ticks >> kStampShift) + 1', 'false'),
    'never_lent': Mutant('kv/session.cpp', '  store_.lend(found, ticks_now());\n', ''),
    'reclaim_without_rest': Mutant('kv/store.cpp', '!has_rested(*epoch) || epoch->empty()', 'epoch->empty()'),
    # The NIC is still to bring the bytes of an operation that was given up.
    'slot_reused_in_flight': Mutant(
        'channel/transfers.cpp', '  if (operation.outstanding == 0) return operations_.end(operation);\n',
        '  return operations_.end(operation);\n'),

    # --- credits

    'update_not_counted': Mutant(
        'channel/messages.cpp',
        '  if (pair_.post(request_, kNoTag, QueuePair::Signal::kSometimes)) credits_.sent();\n',
        '  (void)pair_.post(request_, kNoTag, QueuePair::Signal::kSometimes);\n'),
    # The rest of the ring, which is too short for a fragment, is not the peer's.
    'ring_end_not_charged': Mutant(
        'channel/large.cpp', '  credits_.used_lease(place.taken);\n',
        '  credits_.used_lease(wire::units_of(bytes + sizeof(wire::FragmentHeader)));\n'),
    # Who streams without an answer waits for an update.
    'update_never_sent': Mutant('channel/messages.cpp', 'credits_.available() == 0 || !pair_.has_reserve()', 'true'),

    # --- the end of a connection

    'goodbye_not_counted': Mutant('kv/session.cpp', 'has_left_ = true', 'has_left_ = false'),
    'another_is_buried': Mutant('kv/worker.cpp', '  std::swap(*at, sessions_.back());\n', ''),
    # The socket of a handshake that a cut has silenced is waited for without an end.
    'handshake_never_late': Mutant('link/socket.cpp', 'deadline.left_ms()', '-1', 'api'),
    'visit_never_late': Mutant('node/acceptor.cpp', 'Deadline::after(kTimeout)', 'Deadline::never()'),

    # --- the blocking API: room in the peer's inbox

    'room_not_counted': Mutant(
        'session/outbox.cpp', '  if (takes_room) sent_ += Inbox::bytes_of(bytes);\n', '', 'api'),
    # The ring's end is not its memory's.
    'inbox_does_not_wrap': Mutant(
        'session/inbox.cpp',
        '  if (bytes != first) std::memcpy(memory_.data(), '
        'static_cast<const std::byte*>(from) + first, bytes - first);\n', '', 'api'),

    # --- messages

    # A receive that timed out had taken the front of a message.
    'front_forgotten': Mutant(
        'session/reception.cpp', '  if (call.filled == 0) return Status::kOk;\n', '  return Status::kOk;\n', 'api'),
    'too_small_is_dropped': Mutant(
        'session/reception.cpp', '    call.needed = static_cast<std::size_t>(head.total);\n',
        '    call.needed = static_cast<std::size_t>(head.total);\n    inbox_.pop();\n', 'api'),

    # --- one-sided operations of the blocking API

    # The NIC is still to write there, or to read.
    'memory_free_at_deadline': Mutant(
        'session/transfers.cpp', 'call.parts != 0 && call.is_registered()', 'false', 'api'),

    # --- memory that is deregistered, and messages that are dropped

    'name_outlives_memory': Mutant(
        'session/registrations.cpp',
        '    std::erase_if(names_, [&](const Name& name) { return name.region == found; });\n', '', 'api'),
    'key_outlives_memory': Mutant(
        'session/registrations.cpp', 'nic_.dereg_mr(region->own.release(), deadline)',
        '((void)region->own.release(), Result<void>{})', 'api'),
    'dropped_by_pieces': Mutant(
        'session/reception.cpp',
        '  if (head.kind == wire::Kind::kData && head.offset + piece != head.total) return;\n', '', 'api'),

    # --- the end of a session

    'goodbye_is_loss': Mutant(
        'session/session.cpp', '      end(Status::kClosed);\n', '      end(Status::kPeerLost);\n', 'api'),
    'goodbye_before_messages': Mutant(
        'session/session.cpp', '  (void)reception_.progress();\n  reception_.end(reason);\n',
        '  reception_.end(reason);\n', 'api'),
    'callers_stay': Mutant('session/session.cpp', '  outbox_.end(reason);\n', '', 'api'),
    'askers_stay': Mutant('session/session.cpp', '  windows_.end(reason);\n', '', 'api'),
    'told_before_completions': Mutant(
        'session/session.cpp', 'life_.told == Told::kEnd || !transfers_.is_quiet()', 'life_.told == Told::kEnd', 'api'),

    # --- the mesh

    'notice_lost_at_end': Mutant('mesh/peer.cpp', '    part_ended(*record, reason);\n', '', 'mesh'),
    'released_twice': Mutant('mesh/peer.cpp', '  ++record.generation;\n', '', 'mesh'),
    'window_of_earlier_life': Mutant('mesh/lane.cpp', 'window.incarnation != found->incarnation()', 'false', 'mesh'),
    'message_of_earlier_life': Mutant('mesh/lane.cpp', 'peers_[message.peer]->life() == life', 'true', 'mesh'),
    'goodbye_before_notices': Mutant(
        'mesh/lane.cpp', '  (void)loop().wait_until(has_told, deadline);\n', '', 'mesh'),
    'late_gather_believed': Mutant(
        'mesh/lane.cpp', 'frame.number < number_ || (frame.number == number_ && !is_under_way_)',
        'frame.number < number_', 'mesh'),
    'two_lives_at_once': Mutant('mesh/mesh.cpp', '(is_taken)', 'false', 'mesh'),
    'end_not_looked_at': Mutant('mesh/mesh.cpp', '    must_look_again_ = true;\n', '', 'mesh'),

    # --- coroutines that give up what they await

    'withdrawn_get_goes_on': Mutant(
        'kv/requests.cpp', 'abandon(*call.operation)', 'void(call.operation->tell = nullptr)', 'coroutines'),
    # The NIC would be writing there still.
    'awaited_get_is_not_copied': Mutant(
        'kv/gets.cpp',
        'Requests::is_awaited(operation) || !links_.is_registered(operation.out.first(operation.outcome.length))',
        '!links_.is_registered(operation.out.first(operation.outcome.length))', 'coroutines'),
    'withdrawn_receive_stays': Mutant(
        'api/coro/links.cpp', 'session_->withdraw<session::ReceiveCall>(call<Receiving>())', 'true', 'coroutines'),
    'quarantine_ends_at_once': Mutant(
        'api/cxx/started.cpp',
        '!slot_at(slot).state.compare_exchange_strong(expected, State::kAbandoned, std::memory_order_acq_rel)',
        'true', 'coroutines'),
}


def places(file):
    """What is mutated in a file: the text, and the mutants that there are of it."""
    found = {}
    for name, mutant in MUTANTS.items():
        if mutant.file == file:
            found.setdefault(mutant.old, []).append(name)
    return found


def switch(old, names):
    """The old text, and each of its mutations where that is the one planted."""
    text = old
    for name in names:
        new = MUTANTS[name].new
        if old.endswith('\n'):
            text = f'if (sim::is_planted("{name}")) {{\n{new}}} else {{\n{text}}}\n'
        else:
            text = f'(sim::is_planted("{name}") ? ({new}) : ({text}))'
    return text


def mutated(file, text):
    """The text with all mutations of that file; ValueError when one has not exactly one place."""
    for old, names in places(file).items():
        count = text.count(old)
        if count != 1:
            raise ValueError(f'{", ".join(names)}: occurs {count} times in src/{file}, not once: {old!r}')
        text = text.replace(old, switch(old, names))
    return text


def file_of(source):
    """As the table names it, below src/."""
    parts = source.parts
    return '/'.join(parts[len(parts) - parts[::-1].index('src'):])


def make(source, output):
    try:
        text = mutated(file_of(source), source.read_text())
    except ValueError as error:
        sys.exit(f'mutate.py: {error}. Who changed that place says in mutate.py what the mutation is now.')
    output.write_text(f'#include "planted.hpp"\n#line 1 "{source}"\n{text}')


def self_test():
    wrong = []
    MUTANTS['planted'] = Mutant('a.cpp', 'one', 'two')
    for text in ['', 'one and one']:
        try:
            mutated('a.cpp', text)
            wrong.append(f'self-test: mutates {text!r}')
        except ValueError:
            pass
    if mutated('a.cpp', 'one') != '(sim::is_planted("planted") ? (two) : (one))':
        wrong.append('self-test: an expression is not switched')
    del MUTANTS['planted']
    return wrong


def check(root, sources):
    wrong = self_test()
    files = sorted({mutant.file for mutant in MUTANTS.values()})
    if sorted(file_of(pathlib.Path(source)) for source in sources) != files:
        wrong.append(f'meson.build has {sorted(sources)}, the table {files}')
    for file in files:
        try:
            mutated(file, (root / 'src' / file).read_text())
        except ValueError as error:
            wrong.append(str(error))
    sys.exit('\n'.join(wrong) or None)


def main():
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == 'make':
        make(pathlib.Path(arguments[0]), pathlib.Path(arguments[1]))
    elif command == 'names':
        known = [f'{{"{name}", "{mutant.scenario}"}},\n' for name, mutant in MUTANTS.items()]
        pathlib.Path(arguments[0]).write_text(''.join(known))
    elif command == 'check':
        check(pathlib.Path(arguments[0]), arguments[1:])
    else:
        sys.exit(__doc__)


main()
