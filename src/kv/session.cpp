#include "kv/session.hpp"

#include "base/failure.hpp"
#include "base/log.hpp"
#include "kv/worker.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace verbena::kv {
namespace {

constexpr wire::ReplyHead kGoodbye{.kind = wire::ReplyKind::kGoodbye};

OperationKind kind_of(wire::Op op) noexcept {
  if (op == wire::Op::kErase) return OperationKind::kErase;
  return op == wire::Op::kPut ? OperationKind::kPut : OperationKind::kCas;
}

bool is_refusal(Status status) noexcept { return status == Status::kDenied || status == Status::kOverQuota; }

/// Counts the request as its kind of operation.
void count_denied(Counters& counters, const wire::Request& request) noexcept {
  switch (request.head.op) {
    case wire::Op::kGet: return counters.count_request(OperationKind::kGet);
    case wire::Op::kPut: return counters.count_request(OperationKind::kPut);
    case wire::Op::kCas: return counters.count_request(OperationKind::kCas);
    case wire::Op::kErase: return counters.count_request(OperationKind::kErase);
    case wire::Op::kCell: return counters.count_request(OperationKind::kCell);
    case wire::Op::kPutRead: return counters.count_request(large_kind(request.expected));
    default: return;  // Other requests: only the refusal is counted.
  }
}

}  // namespace

Session::Session(Worker& worker, std::uint64_t client, const Permissions* permissions)
    : worker_(worker),
      store_(worker.store()),
      permissions_(permissions),
      reads_(worker.options().session_depth(), worker.spare_place()),
      client_(client),
      backlog_(worker.options().session_depth()) {}

Result<void> Session::open() {
  VERBENA_ASSIGN(channel_,
                 channel::Connection::create(worker_.loop(), worker_.memory(), worker_.options().channel, *this));
  return {};
}

void Session::join(const node::Acceptor::Stay& stay) noexcept {
  departure_.emplace(*this, stay);
  arrival_.session = this;
  arrival_.open = [](engine::Mailbox::Letter& letter) noexcept {
    Session& arrived = *static_cast<Arrival&>(letter).session;
    arrived.worker_.take_in(arrived);
  };
  worker_.loop().post(arrival_);
}

host::Footprint Session::footprint(unsigned depth) {
  host::Footprint pools;
  pools.add({.name = "session", .bytes_each = sizeof(Session)});
  pools.add({.name = "replies without credit", .count = depth, .bytes_each = sizeof(Waiting)});
  pools.add({.name = "puts by READ", .count = depth, .bytes_each = sizeof(PutReads::Put)});
  return pools;
}

void Session::part() noexcept {
  channel_->leave_loop();
  worker_.see_off(*departure_);
}

void Session::Departure::leave() noexcept {
  session_.close_channel();
  session_.arrival_.open = [](engine::Mailbox::Letter& letter) noexcept {
    Session& gone = *static_cast<Arrival&>(letter).session;
    gone.worker_.bury(gone);
  };
  session_.worker_.loop().post(session_.arrival_);
}

void Session::close_channel() noexcept {
  if (channel_ == nullptr) return;
  if (!has_left_ && is_dead_)
    log(VERBENA_LOG_WARNING, "worker {} has lost a client, which did not say goodbye: {}", worker_.options().index,
        sentence_of(channel_->failure()));
  // Before the rest, because its end may still call this handler, and READs are in flight until then.
  channel_.reset();
}

Session::~Session() {
  close_channel();
  store_.abandon(large_.pending);
  reads_.stop();
  store_.abandon(reads_.pending);
}

// --- replies

void Session::reply(const wire::ReplyHead& head, std::span<const std::byte> payload) noexcept {
  send_reply(wire::bytes_of(head), payload);
}

void Session::reply_found(wire::ReplyHead head, const Store::Found& found,
                          std::span<const std::byte> payload) noexcept {
  if (found.until_ns == 0) [[likely]]
    return reply(head, payload);
  struct Told {
    wire::ReplyHead head;
    wire::Expiry expiry;
  };
  static_assert(sizeof(Told) == sizeof(wire::ReplyHead) + sizeof(wire::Expiry));
  head.flags = wire::kTellsExpiry;
  const Told front{.head = head, .expiry = {.clock_ns = store_.clock_ns(), .until_ns = found.until_ns}};
  send_reply(wire::bytes_of(front), payload);
}

void Session::send_reply(std::span<const std::byte> head, std::span<const std::byte> payload) noexcept {
  if (waiting_ == 0) [[likely]] {
    if (channel_->send(head, payload) != Status::kAgain) return;
    channel_->tell_of_room();
  }
  put_off(head, payload);
}

void Session::put_off(std::span<const std::byte> head, std::span<const std::byte> payload) noexcept {
  // More replies than requests in flight: the client does not take its replies.
  if (waiting_ == backlog_.size()) return channel_->fail(Status::kProtocol);
  Waiting& last = backlog_[(first_waiting_ + waiting_++) % backlog_.size()];
  last.length = head.size() + payload.size();
  std::memcpy(last.bytes.data(), head.data(), head.size());
  if (!payload.empty()) std::memcpy(last.bytes.data() + head.size(), payload.data(), payload.size());
}

bool Session::flush() noexcept {
  while (waiting_ != 0 && !is_dead_) {
    const Waiting& first = backlog_[first_waiting_];
    if (channel_->send(std::span(first.bytes).first(first.length)) == Status::kAgain) return false;
    first_waiting_ = (first_waiting_ + 1) % backlog_.size();
    --waiting_;
  }
  return true;
}

void Session::on_room(channel::Connection& /*connection*/) noexcept {
  if (!flush()) channel_->tell_of_room();
}

bool Session::leave() noexcept {
  if (is_dead_ || !channel_->alive()) return true;  // The acceptor's thread may have a dead one.
  is_leaving_ = true;
  if (!flush()) return false;
  channel_->leave(wire::bytes_of(kGoodbye));
  return channel_->has_left();
}

// Memory in its grace period becomes free within that period: the client may try again, as when the store says so
// itself. Without such memory the store is full.
void Session::look_for_memory(Store::Change& change, std::uint64_t value_length) noexcept {
  if (change.status != Status::kStoreFull) return;
  if (store_.statistics().resting_bytes >= std::max<std::uint64_t>(value_length, 1)) change.status = Status::kAgain;
}

wire::ReplyHead Session::outcome_of(std::uint32_t id, Store::Change change, std::uint64_t value_length) noexcept {
  look_for_memory(change, value_length);
  worker_.counters().count_outcome(change.status);
  worker_.publish();
  // A client that may not READ the item gets no entry: it would learn where keys hash to, and nothing else.
  return {.status = change.status, .id = id, .version = change.version, .entry = is_exported() ? change.entry : 0};
}

void Session::reply_change(std::uint32_t id, Store::Change change, std::uint64_t value_length) noexcept {
  if (is_refusal(change.status)) [[unlikely]]
    return refuse(id, change);
  const wire::ReplyHead head = outcome_of(id, change, value_length);
  head.status == Status::kStoreFull ? tell_full(head, value_length) : reply(head);
}

// To who may see the statistics, which have the same numbers.
[[gnu::cold]] void Session::tell_full(const wire::ReplyHead& head, std::uint64_t value_length) noexcept {
  if (permissions_ != nullptr && !permissions_->may_administer) return reply(head);
  const StoreStatistics now = store_.statistics();
  wire::Fullness full{.needed = value_length,
                      .capacity = now.capacity_bytes,
                      .used = now.used_bytes,
                      .resting = now.resting_bytes,
                      .cells = worker_.cells().made()};
  ServerStatistics memory;
  store_.add_memory(memory);
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    if (memory.memory[i].used_bytes <= full.class_used) continue;
    full.class_used = memory.memory[i].used_bytes;
    full.class_block = block_bytes_of(i);
  }
  wire::ReplyHead full_head = head;
  full_head.kind = wire::ReplyKind::kFull;
  reply(full_head, wire::bytes_of(full));
}

// --- small requests

void Session::on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept {
  if (is_leaving_) [[unlikely]]
    return;
  wire::Request request;
  const Status decoded = wire::decode_request(body, request);
  if (decoded == Status::kProtocol) [[unlikely]]
    return connection.fail(Status::kProtocol);
  if (decoded != Status::kOk) [[unlikely]]
    return reply_change(request.head.id, {decoded, 0});
  if (permissions_ != nullptr) [[unlikely]]
    if (!may(request)) return;
  switch (request.head.op) {
    case wire::Op::kGet: return get(request);
    case wire::Op::kGetPart: return get_part(request);
    case wire::Op::kPut:
    case wire::Op::kCas:
    case wire::Op::kErase: return change(request);
    case wire::Op::kCell: return open_cell(request);
    case wire::Op::kPutRead: return put_read(request);
    case wire::Op::kStatistics: return tell_statistics(request.head.id, static_cast<StatisticsPart>(request.expected));
    case wire::Op::kGoodbye: has_left_ = true; return connection.peer_left();
    case wire::Op::kKeys:
    case wire::Op::kFlush: return scan(request);
    case wire::Op::kReads: return worker_.counters().count_reads(request.expected);
    case wire::Op::kPutLarge:
    case wire::Op::kMoreLarge: break;
  }
  connection.fail(Status::kProtocol);
}

void Session::get(const wire::Request& request) noexcept {
  Counters& counters = worker_.counters();
  Service service(counters, OperationKind::kGet);
  const Store::Found found = store_.find(request.key);
  const bool is_large = found.status == Status::kOk && found.value.size() >= kEagerBytes;
  service.count_as(is_large ? OperationKind::kGetLarge : OperationKind::kGet);
  if (found.status != Status::kOk) {
    counters.count_outcome(found.status);
    return reply({.status = found.status, .id = request.head.id});
  }
  ++counters.hits;
  wire::ReplyHead head{
      .kind = wire::ReplyKind::kValue, .id = request.head.id, .version = found.version, .entry = found.entry};
  if (!is_exported()) [[unlikely]]
    head.entry = 0;
  if (!is_large) return reply_found(head, found, found.value);
  if (!is_exported()) [[unlikely]]
    return reply_part(head, found, 0);
  // The time is read after the request came, so it is later than the client's own reading before it sent.
  store_.lend(found, ticks_now());
  head.kind = wire::ReplyKind::kLocation;
  reply_found(head, found,
              wire::bytes_of(wire::Location{.address = reinterpret_cast<std::uintptr_t>(found.value.data()),
                                            .length = found.value.size(),
                                            .rkey = worker_.window().rkey,
                                            .checksum = found.checksum}));
}

void Session::change(const wire::Request& request) noexcept {
  const OperationKind kind = kind_of(request.head.op);
  Service service(worker_.counters(), kind);
  service.count_as(kind);
  if (kind == OperationKind::kErase) return reply_change(request.head.id, store_.erase(request.key));
  reply_change(request.head.id, store_.put(request.key, request.value, request.expected, owner(), request.ttl_ns),
               request.value.size());
}

void Session::open_cell(const wire::Request& request) noexcept {
  Service service(worker_.counters(), OperationKind::kCell);
  service.count_as(OperationKind::kCell);
  const Cells::Found cell = worker_.cells().find_or_make(store_, request.key, request.expected, owner());
  if (cell.status != Status::kOk) return reply_change(request.head.id, {.status = cell.status, .quota = cell.quota});
  worker_.publish();
  reply({.kind = wire::ReplyKind::kCell, .id = request.head.id, .version = cell.version}, wire::bytes_of(cell.place));
}

void Session::tell_statistics(std::uint32_t id, StatisticsPart part) noexcept {
  worker_.publish();
  ServerStatistics statistics;
  worker_.add_server_statistics(part, statistics);
  StatisticsWords words;
  const std::size_t count = put_words(statistics, part, words);
  reply({.kind = wire::ReplyKind::kStatistics, .id = id}, std::as_bytes(std::span(words).first(count)));
}

// --- large values

void Session::on_fragment(channel::Connection& connection, const channel::Fragment& fragment) noexcept {
  if (is_leaving_) [[unlikely]]
    return;
  if (fragment.offset == 0) {
    front_.is_complete = false;
    front_.have = 0;
  }
  std::span<const std::byte> bytes = fragment.bytes;
  Status status = front_.is_complete ? Status::kOk : take_front(bytes);
  if (status == Status::kOk) status = append(bytes);
  // kAgain: the front continues in the next fragment, if there is one.
  if (status == Status::kProtocol || (status == Status::kAgain && fragment.last())) connection.fail(Status::kProtocol);
}

// Moves the message's front out of the lease, which the client can still write, before anything looks at it.
Status Session::take_front(std::span<const std::byte>& bytes) noexcept {
  for (;;) {  // At most three rounds: each needs more bytes than the one before.
    std::size_t needed = 0;
    const Status decoded = wire::decode_large(std::span(front_.bytes).first(front_.have), front_.parsed, needed);
    if (decoded == Status::kOk) {
      front_.is_complete = true;
      return begin_part();
    }
    if (decoded != Status::kAgain || bytes.empty()) return decoded;
    const std::size_t taken = std::min(needed - front_.have, bytes.size());
    std::memcpy(front_.bytes.data() + front_.have, bytes.data(), taken);
    front_.have += taken;
    bytes = bytes.subspan(taken);
  }
}

Status Session::begin_part() noexcept {
  const wire::RequestHead& head = front_.parsed.head;
  if (head.op == wire::Op::kMoreLarge) return large_.is_open && large_.id == head.id ? Status::kOk : Status::kProtocol;
  store_.abandon(large_.pending);  // A value whose rest the client never sent.
  const wire::LargeHead& value = front_.parsed.large;
  large_ = {.is_open = true,
            .id = head.id,
            .expected = value.expected,
            .total = value.value_length,
            .began_ticks = ticks_now()};
  const Key key = std::span(front_.parsed.key).first(head.key_length);
  worker_.counters().count_request(large_kind(value.expected));
  // Without the right the bytes are dropped, as those of a value that there is no memory for.
  large_.answer =
      permissions_ != nullptr && missing_to_write(key) != Rights::kNone
          ? Store::Change{.status = Status::kDenied}
          : store_.reserve(key, value.value_length, value.expected, large_.pending, owner(), front_.parsed.ttl_ns);
  // Now: memory in its grace period may be free by the time that the last byte is here.
  look_for_memory(large_.answer, value.value_length);
  return Status::kOk;
}

Status Session::append(std::span<const std::byte> bytes) noexcept {
  if (!large_.is_open || bytes.size() > large_.total - large_.filled)
    return bytes.empty() ? Status::kOk : Status::kProtocol;
  if (bytes.size() == large_.total && is_for_memory(large_.answer.status)) [[unlikely]]
    put_at_once(bytes);
  // The one copy, which takes the bytes out of the client's reach.
  if (large_.pending && !bytes.empty())
    std::memcpy(large_.pending.value.data() + large_.filled, bytes.data(), bytes.size());
  large_.filled += bytes.size();
  if (large_.filled == large_.total) finish_large();
  return Status::kOk;
}

// There is no memory beside the old value, but all of the new one is at hand: it may take the old one's place.
void Session::put_at_once(std::span<const std::byte> value) noexcept {
  const Key key = std::span(front_.parsed.key).first(front_.parsed.head.key_length);
  large_.answer = store_.put(key, value, large_.expected, owner(), front_.parsed.ttl_ns);
}

void Session::finish_large() noexcept {
  large_.is_open = false;
  reply_change(large_.id, large_.pending ? store_.commit(large_.pending, large_.expected) : large_.answer,
               large_.total);
  worker_.counters().record_ticks(large_kind(large_.expected), ticks_now() - large_.began_ticks);
}

void Session::on_complete(channel::Connection&, const channel::Completion& completion) noexcept {
  if (completion.status == Status::kOk) on_read();  // Otherwise the connection is failing; PUTs end with the session.
}

void Session::on_end(channel::Connection&, Status) noexcept {
  is_dead_ = true;
  store_.abandon(large_.pending);
  worker_.lose(*this);
}

// --- values in the client's memory: it may change the bytes meanwhile, which changes what is stored and nothing else;
// the one copy is taken out of its reach before its checksum is taken

void Session::put_read(const wire::Request& request) noexcept {
  worker_.counters().count_request(large_kind(request.expected));
  const bool is_first = reads_.empty();
  // More PUTs than requests in flight.
  if (!reads_.add(request, ticks_now())) return channel_->fail(Status::kProtocol);
  if (is_first) begin_reads();
}

/// Begins with the first PUT that there is memory for, and answers those before it.
void Session::begin_reads() noexcept {
  while (!reads_.empty()) {
    const PutReads::Put& put = reads_.first();
    const Store::Change reserved = reserve_for(put);
    if (reserved.status != Status::kOk) {
      end_put(reserved);
      continue;
    }
    // The NICs check the key and the range: a request that names other memory ends its connection.
    channel_->lend_window(
        {.address = put.address, .length = put.length, .rkey = put.rkey, .access = IBV_ACCESS_REMOTE_READ});
    return post_reads();
  }
}

Store::Change Session::reserve_for(const PutReads::Put& put) noexcept {
  const Store::Change reserved =
      store_.reserve(put.key(), put.length, put.expected, reads_.pending, owner(), put.ttl_ns);
  // There is no memory beside the old value: the new one may take its place once all of it is here.
  if (is_for_memory(reserved.status) && reads_.take_spare()) [[unlikely]]
    return {.status = Status::kOk};
  return reserved;
}

void Session::post_reads() noexcept {
  while (const auto piece = reads_.next(worker_.window_lkey())) {
    const Status status = channel_->start_read(piece->to, piece->from, kReadToken);
    if (status != Status::kOk) return channel_->fail(Status::kProtocol);
    reads_.posted(*piece);
  }
}

void Session::on_read() noexcept {
  if (is_leaving_) return;
  if (!reads_.arrived()) return post_reads();
  const PutReads::Put& put = reads_.first();
  end_put(reads_.is_in_spare() ? store_.put(put.key(), reads_.in_spare(), put.expected, owner(), put.ttl_ns)
                               : store_.commit(reads_.pending, put.expected));
  begin_reads();
}

void Session::end_put(Store::Change change) noexcept {
  const PutReads::Put& put = reads_.first();
  worker_.counters().record_ticks(large_kind(put.expected), ticks_now() - put.began_ticks);
  reply_change(put.id, change, put.length);
  reads_.pop();
}

// --- limited rights

bool Session::may(const wire::Request& request) noexcept {
  const Rights missing = missing_for(request);
  if (missing == Rights::kNone) [[likely]]
    return true;
  count_denied(worker_.counters(), request);
  refuse(request.head.id, {.status = Status::kDenied}, missing);
  return false;
}

Rights Session::missing_to_write(Key key) const noexcept {
  return permissions_->write.covers(key) ? Rights::kNone : Rights::kWrite;
}

Rights Session::missing_for(const wire::Request& request) const noexcept {
  switch (request.head.op) {
    case wire::Op::kGet:
    case wire::Op::kGetPart: return permissions_->read.covers(request.key) ? Rights::kNone : Rights::kRead;
    case wire::Op::kPut:
    case wire::Op::kCas:
    case wire::Op::kErase:
    case wire::Op::kPutRead: return missing_to_write(request.key);
    case wire::Op::kCell:
      // Access to one cell is access to the memory of all.
      if (permissions_->may_use_cells()) return Rights::kNone;
      return permissions_->write.covers_all() ? Rights::kRead : Rights::kWrite;
    case wire::Op::kKeys: return permissions_->read.covers(request.key) ? Rights::kNone : Rights::kRead;
    case wire::Op::kFlush: return missing_to_write(request.key);
    case wire::Op::kStatistics: return permissions_->may_administer ? Rights::kNone : Rights::kAdminister;
    // A large value is checked when it begins.
    case wire::Op::kPutLarge:
    case wire::Op::kMoreLarge:
    case wire::Op::kReads:
    case wire::Op::kGoodbye: break;
  }
  return Rights::kNone;
}

// `missing` is used with kDenied only.
void Session::refuse(std::uint32_t id, const Store::Change& change, Rights missing) noexcept {
  Counters& counters = worker_.counters();
  counters.count_outcome(change.status);
  wire::Refusal refusal{.uid = permissions_->subject.uid};
  std::string_view prefix;
  if (change.status == Status::kDenied) {
    ++counters.denied;
    refusal.right = missing;
    refusal.is_promised = permissions_->is_read_only && missing == Rights::kWrite ? 1 : 0;
    if (missing != Rights::kAdminister) {
      const PrefixSet& granted = missing == Rights::kRead ? permissions_->read : permissions_->write;
      prefix = granted.first();
      refusal.prefixes = static_cast<std::uint16_t>(granted.size());
      refusal.prefix_length = static_cast<std::uint16_t>(prefix.size());
      prefix = prefix.substr(0, wire::kMostPrefixBytes);
    }
  } else {
    ++counters.over_quota;
    const bool is_memory = change.quota == Quota::kMemory;
    const Account::Amount used = permissions_->account->used(), most = permissions_->account->most();
    refusal.quota = static_cast<std::uint8_t>(change.quota);
    refusal.used = is_memory ? used.bytes : used.items;
    refusal.most = is_memory ? most.bytes : most.items;
  }
  std::array<std::byte, sizeof refusal + wire::kMostPrefixBytes> payload;
  std::memcpy(payload.data(), &refusal, sizeof refusal);
  if (!prefix.empty()) std::memcpy(payload.data() + sizeof refusal, prefix.data(), prefix.size());
  reply({.status = change.status, .kind = wire::ReplyKind::kRefusal, .id = id},
        std::span(payload).first(sizeof refusal + prefix.size()));
}

// --- large values of clients without access to the store's memory

// The client asks for the parts one by one. Each carries the version, and the client starts over when it changes, so it
// ends up with one whole value.
void Session::get_part(const wire::Request& request) noexcept {
  const Store::Found found = store_.find(request.key);
  if (found.status != Status::kOk) return reply_change(request.head.id, {.status = found.status});
  wire::ReplyHead head{.kind = wire::ReplyKind::kValue, .id = request.head.id, .version = found.version};
  if (found.value.size() < kEagerBytes) return reply_found(head, found, found.value);
  reply_part(head, found, request.expected < found.value.size() ? request.expected : 0);
}

void Session::reply_part(const wire::ReplyHead& head, const Store::Found& found, std::uint64_t offset) noexcept {
  const wire::Part part{.length = found.value.size(), .offset = offset};
  const auto bytes = static_cast<std::size_t>(std::min(wire::kPartBytes, part.length - offset));
  std::array<std::byte, sizeof part + wire::kPartBytes> payload;
  std::memcpy(payload.data(), &part, sizeof part);
  std::memcpy(payload.data() + sizeof part, found.value.data() + offset, bytes);
  wire::ReplyHead of_part = head;
  of_part.kind = wire::ReplyKind::kPart;
  of_part.entry = 0;
  reply_found(of_part, found, std::span(payload).first(sizeof part + bytes));
}

// --- scans: one step for each request

// The place comes back from the client, which may have it from another server, or from nowhere. The seal finds slips;
// the range that `Store::has` checks is all that safety needs.
std::uint64_t Session::seal_of(const Store::ScanPlace& at, Key prefix) const noexcept {
  const std::array<std::uint64_t, 3> front{at.place, at.moves, worker_.options().index};
  std::array<std::byte, sizeof front + kMaxKeyBytes> sealed;
  std::memcpy(sealed.data(), front.data(), sizeof front);
  if (!prefix.empty()) std::memcpy(sealed.data() + sizeof front, prefix.data(), prefix.size());
  // Never 0, which means the start.
  return hash_of(std::span(sealed).first(sizeof front + prefix.size()), worker_.options().hash_seed) | 1;
}

bool Session::is_ours(const wire::ScanPlace& at, Key prefix) const noexcept {
  if (at.seal == 0) return at == wire::ScanPlace{};
  const Store::ScanPlace place{.place = at.place, .moves = at.moves};
  return at.seal == seal_of(place, prefix) && store_.has(place);
}

void Session::scan(const wire::Request& request) noexcept {
  if (!is_ours(request.scan, request.key)) return reply_change(request.head.id, {.status = Status::kBadArgument});
  const Store::ScanPlace from{.place = request.scan.place, .moves = request.scan.moves};
  std::array<std::byte, sizeof(wire::ScanPage) + KeyPage::kBytes> payload;
  const Store::Scanned done = request.head.op == wire::Op::kFlush
                                  ? store_.flush(request.key, from)
                                  : store_.list(request.key, from, std::span(payload).subspan(sizeof(wire::ScanPage)));
  wire::ScanPage page{.count = done.keys};
  if (!done.is_over)
    page.next = {.place = done.next.place, .moves = done.next.moves, .seal = seal_of(done.next, request.key)};
  std::memcpy(payload.data(), &page, sizeof page);
  worker_.publish();
  reply({.kind = wire::ReplyKind::kScanned, .id = request.head.id}, std::span(payload).first(sizeof page + done.bytes));
}

}  // namespace verbena::kv
