#include "mesh/peer.hpp"

#include "base/check.hpp"
#include "mesh/lane.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::mesh {

namespace {

const wire::Head kGoodbye{.kind = wire::Kind::kGoodbye};

/// Marks the token of a message after a WRITE; the other bits are its record.
constexpr std::uint64_t kNotice = std::uint64_t{1} << 63;
/// Token of frames from `tell_for_sure`.
constexpr std::uint64_t kSureToken = kNotice - 1;
/// Windows of a peer that a process keeps, at most, so that a peer cannot use up memory.
constexpr std::size_t kMostWindows = 1024;

[[nodiscard]] wire::Head head_with(wire::Kind kind, std::optional<std::uint32_t> immediate) noexcept {
  return {
      .kind = kind, .has_immediate = static_cast<std::uint8_t>(immediate ? 1 : 0), .immediate = immediate.value_or(0)};
}

}  // namespace

PeerOptions PeerOptions::of(const Options& options) noexcept {
  const std::size_t longest = std::max(options.message_bytes + sizeof(wire::Head), wire::kMaxFrameBytes);
  return {.channel = {.depth = options.depth,
                      .eager_bytes = static_cast<std::uint32_t>((longest + 63) / 64 * 64),
                      // A WRITE and the message after it are two; ready, goodbye and gather take one each.
                      .max_operations = 2 * options.operations + 3,
                      .max_larges = 0,
                      .reservations = options.reservations,
                      // At most as many messages are in flight as the peer has credits for, and one update.
                      .staged = std::min(options.depth + 1, 32U),
                      .held = options.batch > 1 ? options.batch : 0,
                      .keeps_messages = true},
          .operations = options.operations,
          .batch = options.batch};
}

Peer::Peer(LaneOfMesh& lane, const PeerOptions& options)
    : lane_(lane),
      options_(options),
      arrivals_(channel::wire::receives_for(options.channel.depth)),
      operations_(options.operations) {
  for (Record& record : arrivals_) record.peer = this;
  for (Record& record : operations_) {
    record.peer = this;
    free_.push(record);
  }
  for (Record& record : news_) record.peer = this;
}

Result<std::unique_ptr<Peer>> Peer::create(LaneOfMesh& lane, const PeerOptions& options) {
  std::unique_ptr<Peer> made(new Peer(lane, options));
  VERBENA_ASSIGN(made->connection_,
                 channel::Connection::create(lane.loop(), lane.shard().memory(), options.channel, *made));
  return made;
}

host::Footprint Peer::footprint(nic::Kind kind, const nic::Limits& limits, const PeerOptions& options) {
  host::Footprint pools;
  pools.add({.name = "peer", .bytes_each = sizeof(Peer)});
  pools.add({.name = "records",
             .count = channel::wire::receives_for(options.channel.depth) + options.operations,
             .bytes_each = sizeof(Record)});
  pools.add("connection", 1, channel::footprint(kind, limits, options.channel));
  return pools;
}

void Peer::enter(std::uint64_t life) noexcept {
  life_ = life;
  if (options_.batch > 1) connection_->hold();
  Record& joined = news_[0];
  joined.completion = {.kind = Completion::Kind::kJoined, .peer = id_};
  joined.state = Record::State::kEnded;
  ++records_;
  lane_.has_ended(joined, Which::kReceives);
}

// --- what the user calls ------------------------------------------------------------------------------------------

std::span<std::byte> Peer::reserve() noexcept {
  if (reason_ != Status::kOk) return {};
  const std::span<std::byte> room = connection_->reserve();
  if (room.empty()) return room;
  ++reserved_;
  return room.subspan(sizeof(wire::Head));
}

void Peer::cancel(std::span<std::byte> message) noexcept {
  connection_->cancel_reserved(head_of(message));
  --reserved_;
}

bool Peer::is_reserved(std::span<const std::byte> message) const noexcept {
  return connection_->is_reserved(head_of(message));
}

Record* Peer::begin(Completion::Kind kind, std::uint64_t cookie, std::span<std::byte> bytes) noexcept {
  Record* const record = free_.first();
  if (record == nullptr || !notices_.empty()) {
    connection_->tell_of_room();  // The notice leaves by the credit that comes.
    return nullptr;
  }
  free_.pop();
  record->completion = {.kind = kind, .peer = id_, .cookie = cookie, .bytes = bytes};
  record->state = Record::State::kUnderWay;
  record->parts = 1;
  ++records_;
  return record;
}

Status Peer::started(Record* record, Status status) noexcept {
  if (status != Status::kOk) {
    free(*record);
    if (status == Status::kAgain) connection_->tell_of_room();
    return status;
  }
  if (options_.batch > 1 && ++posts_since_doorbell_ >= options_.batch) {
    posts_since_doorbell_ = 0;
    connection_->flush();
  }
  return status;
}

Status Peer::commit(std::span<std::byte> message, std::uint64_t cookie,
                    std::optional<std::uint32_t> immediate) noexcept {
  if (reason_ != Status::kOk) return reason_;
  Record* const record = begin(Completion::Kind::kSend, cookie, message);
  if (record == nullptr) return Status::kAgain;
  std::byte* const start = head_of(message);
  const wire::Head head = head_with(wire::Kind::kMessage, immediate);
  std::memcpy(start, &head, sizeof head);
  const Status status =
      started(record, connection_->start_reserved({start, sizeof head + message.size()}, token_of(*record)));
  if (status == Status::kOk) --reserved_;
  return status;
}

Status Peer::send(std::span<const std::byte> message, std::uint64_t cookie,
                  std::optional<std::uint32_t> immediate) noexcept {
  if (reason_ != Status::kOk) return reason_;
  const std::span<std::byte> bytes(const_cast<std::byte*>(message.data()), message.size());
  Record* const record = begin(Completion::Kind::kSend, cookie, bytes);
  if (record == nullptr) return Status::kAgain;
  const wire::Head head = head_with(wire::Kind::kMessage, immediate);
  return started(record, connection_->start_send(wire::bytes_of(head), message, token_of(*record)));
}

Status Peer::write(const channel::LocalSpan& from, const channel::RemoteSpan& to, std::uint64_t cookie,
                   std::optional<std::uint32_t> immediate) noexcept {
  if (reason_ != Status::kOk) return reason_;
  Record* const record = begin(Completion::Kind::kWrite, cookie, {from.data, from.length});
  if (record == nullptr) return Status::kAgain;
  // The message after the WRITE repeats its place.
  record->completion.immediate = immediate;
  record->completion.old = to.address;
  const Status status = started(record, connection_->start_write(from, to, token_of(*record)));
  if (status != Status::kOk || !immediate) return status;
  ++record->parts;
  if (const Status told = send_notice(*record); told == Status::kAgain) {
    notices_.push(*record);
    lane_.list(*this);
  } else if (told != Status::kOk) {
    part_ended(*record, told);
  }
  return Status::kOk;
}

Status Peer::read(const channel::LocalSpan& to, const channel::RemoteSpan& from, std::uint64_t cookie) noexcept {
  if (reason_ != Status::kOk) return reason_;
  Record* const record = begin(Completion::Kind::kRead, cookie, {to.data, to.length});
  if (record == nullptr) return Status::kAgain;
  return started(record, connection_->start_read(to, from, token_of(*record)));
}

Status Peer::change(const channel::Change& change, const channel::RemoteSpan& word, std::uint64_t cookie) noexcept {
  if (reason_ != Status::kOk) return reason_;
  Record* const record = begin(Completion::Kind::kAtomic, cookie, {});
  if (record == nullptr) return Status::kAgain;
  return started(record, connection_->start_change(change, word, token_of(*record)));
}

Record* Peer::find_held(const Completion::Handle& handle) noexcept {
  const std::uint64_t slot = handle.place & ((1u << kSlotBits) - 1);
  if (slot >= arrivals_.size()) return nullptr;
  Record& record = arrivals_[slot];
  return record.state == Record::State::kHeld && record.generation == handle.generation ? &record : nullptr;
}

void Peer::give_back(Record& message) noexcept {
  connection_->give_back(message.slot);
  free(message);
}

void Peer::was_taken(Record& record) noexcept {
  switch (record.completion.kind) {
    case Completion::Kind::kReceive: record.state = Record::State::kHeld; return;
    case Completion::Kind::kWritten: return give_back(record);
    default: return free(record);
  }
}

void Peer::free(Record& record) noexcept {
  VERBENA_DCHECK(record.state != Record::State::kFree && records_ != 0);
  record.state = Record::State::kFree;
  ++record.generation;
  --records_;
  const bool is_operation = &record >= operations_.data() && &record < operations_.data() + operations_.size();
  if (is_operation) free_.push(record);
}

// --- what the peer is told ----------------------------------------------------------------------------------------

Status Peer::tell_ready(std::uint32_t gathers) noexcept {
  return tell_for_sure(wire::bytes_of(wire::Head{.kind = wire::Kind::kReady, .immediate = gathers}));
}

Status Peer::tell_for_sure(std::span<const std::byte> frame) noexcept {
  const Status started = connection_->start_send(frame, {}, kSureToken);
  if (started == Status::kOk) ++untold_;
  return started;
}

Status Peer::send_notice(Record& record) noexcept {
  wire::WrittenFrame frame{.head = head_with(wire::Kind::kWritten, record.completion.immediate),
                           .address = record.completion.old,
                           .length = record.completion.bytes.size()};
  return connection_->start_send(wire::bytes_of(frame), {}, kNotice | token_of(record));
}

Status Peer::send_notices() noexcept {
  while (Record* const record = notices_.first()) {
    const Status told = send_notice(*record);
    if (told == Status::kAgain) return told;
    notices_.pop();
    if (told != Status::kOk) part_ended(*record, told);
  }
  return Status::kOk;
}

void Peer::leave() noexcept {
  if (reason_ == Status::kOk) connection_->leave(wire::bytes_of(kGoodbye));
}

// --- what the connection calls ------------------------------------------------------------------------------------

void Peer::on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept {
  wire::Head head;
  if (body.size() < sizeof head) return connection.fail(Status::kProtocol);
  std::memcpy(&head, body.data(), sizeof head);
  if (head.has_immediate > 1) return connection.fail(Status::kProtocol);
  bool is_sound = true;
  switch (head.kind) {
    case wire::Kind::kMessage: on_message_of_user(head, body.subspan(sizeof head)); break;
    case wire::Kind::kWritten: is_sound = on_written(body); break;
    case wire::Kind::kReady: lane_.on_ready(*this, head.immediate); break;
    case wire::Kind::kWindow: is_sound = on_window(body); break;
    case wire::Kind::kGather: lane_.on_gather(*this, body); break;
    case wire::Kind::kGoodbye: connection.peer_left(); break;
    default: is_sound = false;
  }
  if (!is_sound) connection.fail(Status::kProtocol);
}

void Peer::arrived(Completion::Kind kind, std::span<std::byte> bytes, std::optional<std::uint32_t> immediate) noexcept {
  const std::uint32_t slot = connection_->keep_message();
  Record& record = arrivals_[slot];
  record.slot = slot;
  record.state = Record::State::kEnded;
  record.completion = {.kind = kind,
                       .peer = id_,
                       .immediate = immediate,
                       .bytes = bytes,
                       .handle = {.place = life_ << kSlotBits | slot, .generation = record.generation}};
  ++records_;
  lane_.has_ended(record, Which::kReceives);
}

void Peer::on_message_of_user(const wire::Head& head, std::span<const std::byte> body) noexcept {
  std::optional<std::uint32_t> immediate;
  if (head.has_immediate != 0) immediate = head.immediate;
  arrived(Completion::Kind::kReceive, {const_cast<std::byte*>(body.data()), body.size()}, immediate);
}

// The place is the peer's claim: passes on only bytes in memory that peers may reach.
bool Peer::on_written(std::span<const std::byte> body) noexcept {
  wire::WrittenFrame frame;
  if (!wire::take_all(body, frame) || frame.head.has_immediate != 1) return false;
  const session::RegisteredMemory* const memory = lane_.memory_at(frame.address, frame.length);
  if (memory == nullptr || !rdma::includes(memory->access, rdma::Access::kWrite)) return false;
  arrived(Completion::Kind::kWritten, {reinterpret_cast<std::byte*>(frame.address), frame.length},
          frame.head.immediate);
  return true;
}

bool Peer::on_window(std::span<const std::byte> body) noexcept {
  wire::WindowFrame frame;
  if (!wire::take_all(body, frame) || windows_.size() == kMostWindows) return false;
  const auto window = wire::window_of(frame);
  if (!window || find(wire::name_of(frame)) != nullptr) return false;
  windows_.push_back({.name = std::string(wire::name_of(frame)), .window = *window});
  return true;
}

Peer::Published* Peer::find(std::string_view name) noexcept {
  const auto found = std::ranges::find(windows_, name, &Published::name);
  return found == windows_.end() ? nullptr : &*found;
}

void Peer::part_ended(Record& record, Status status) noexcept {
  if (status != Status::kOk && record.completion.status == Status::kOk) record.completion.status = status;
  if (--record.parts != 0) return;
  if (record.completion.kind == Completion::Kind::kWrite) record.completion.old = 0;
  record.state = Record::State::kEnded;
  lane_.has_ended(record, Which::kSends);
}

void Peer::on_complete(channel::Connection& /*connection*/, const channel::Completion& completion) noexcept {
  if (completion.token == kSureToken) {
    --untold_;
    return;
  }
  Record& record = operations_[completion.token & ~kNotice];
  if (record.completion.kind == Completion::Kind::kAtomic) record.completion.old = completion.old;
  part_ended(record, completion.status);
}

// Credit arrives with a message that causes no completion for the user.
void Peer::on_room(channel::Connection& /*connection*/) noexcept { lane_.on_room(); }

void Peer::on_end(channel::Connection& /*connection*/, Status reason) noexcept {
  reason_ = reason;
  while (Record* const record = notices_.first()) {
    notices_.pop();
    part_ended(*record, reason);
  }
  Record& left = news_[1];
  left.completion = {.kind = Completion::Kind::kLeft, .status = reason, .peer = id_};
  left.state = Record::State::kEnded;
  ++records_;
  has_ended_ = true;
  lane_.has_ended(left, Which::kReceives);
  lane_.on_peer_end(*this);
}

}  // namespace verbena::mesh
