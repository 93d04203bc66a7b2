// Typed lanes of a mesh: who has a segment from the start of an operation to its end.
#include "api/cxx/mesh_lane.hpp"

#include "api/cxx/guarded.hpp"
#include "base/limit.hpp"
#include "channel/wire.hpp"
#include "mesh/mesh.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace verbena::typed {
namespace detail {

MeshLaneState::MeshLaneState(mesh::LaneOfMesh& lane, const MeshLaneOptions& options)
    : StartedOperations(options.operations, 1),
      lane_(lane),
      timeout_(options.timeout),
      calls_(numbers()),
      peers_(lane.mesh().options().processes),
      arrivals_(lane.most_lives() * channel::wire::receives_for(lane.mesh().options().depth)) {
  for (Arrival& arrival : arrivals_) free_.push(arrival);
  for (unsigned id = 0; id < peers_.size(); ++id)
    if (!lane.is_here(id)) peers_[id].gone = Status::kNotFound;
}

// --- starting -----------------------------------------------------------------------------------------------------

Started MeshLaneState::start(const MeshRequest& request) noexcept {
  Started started = StartedOperations::start(request.call, [&](std::uint64_t cookie) {
    if (const Status checked = check(request); checked != Status::kOk) return checked;
    Call& call = calls_[static_cast<std::uint32_t>(cookie)];
    call.request = request;
    if (request.window != nullptr) call.window = *request.window;
    call.is_posted = false;
    return begin(call);
  });
  if (started.is_under_way()) (void)started.poll();
  return started;
}

Status MeshLaneState::check(const MeshRequest& request) const noexcept {
  const unsigned self = lane_.mesh().options().id;
  if (request.peer >= peers_.size() || request.peer == self)
    return note(Status::kBadArgument, request.call, "peer must be 0 to {}, and not {}, which is this process; got {}",
                peers_.size() - 1, self, request.peer);
  const bool is_message = request.kind == Kind::kSend || request.kind == Kind::kReceive;
  if (is_message && request.bytes.empty())
    return note(Status::kBadArgument, request.call, "a message must have at least one element; got none");
  if (is_message || request.kind == Kind::kFlush) return Status::kOk;
  if (request.window == nullptr) return refuse_call(request.call, true, request.needs);
  const bool is_atomic = request.kind == Kind::kFetchAdd || request.kind == Kind::kCompareSwap;
  const std::size_t bytes = is_atomic ? sizeof(std::uint64_t) : request.bytes.size();
  if (bytes != 0 && bytes <= request.remote.length) return Status::kOk;
  return note(Status::kBadArgument, request.call, "{} bytes here and {} there: the target must have room for all",
              bytes, request.remote.length);
}

Status MeshLaneState::begin(Call& call) noexcept {
  Peer& peer = peers_[call.request.peer];
  if (call.request.kind == Kind::kReceive) {
    if (peer.gone != Status::kOk && peer.arrived.empty())
      return note(peer.gone, call.request.call, "process {} is not connected", call.request.peer);
    peer.receiving.push(call);
    feed(peer);
    return Status::kOk;
  }
  call.number = ++peer.last_number;
  if (call.request.kind != Kind::kFlush) return begin_in_order(call, peer);
  lane_.flush(call.request.peer);
  call.left = peer.under_way;
  if (call.left == 0) {
    complete(slot_of(call), {});
  } else {
    peer.flushing.push(call);
  }
  return Status::kOk;
}

Status MeshLaneState::begin_in_order(Call& call, Peer& peer) noexcept {
  const Status posted = peer.starting.empty() ? post(call) : Status::kAgain;
  if (posted != Status::kOk && posted != Status::kAgain) return posted;
  ++peer.under_way;
  if (posted == Status::kOk) return posted;
  peer.starting.push(call);
  if (!std::exchange(peer.is_stalled, true)) stalled_.push(peer);
  return Status::kOk;
}

Status MeshLaneState::post(Call& call) noexcept {
  const MeshRequest& request = call.request;
  const std::uint64_t cookie = cookie_of(slot_of(call));
  const std::uint64_t offset = request.remote.address - call.window.memory.address;
  Status posted = Status::kOk;
  switch (request.kind) {
    case Kind::kSend: posted = lane_.send(request.peer, request.bytes, cookie, request.immediate); break;
    case Kind::kWrite: posted = lane_.write(call.window, offset, request.bytes, cookie, request.immediate); break;
    case Kind::kRead: posted = lane_.read(call.window, offset, request.bytes, cookie); break;
    case Kind::kFetchAdd: posted = lane_.fetch_add(call.window, offset, request.operand, cookie); break;
    case Kind::kCompareSwap:
      posted = lane_.compare_swap(call.window, offset, request.operand, request.swap, cookie);
      break;
    case Kind::kReceive:
    case Kind::kFlush: __builtin_unreachable();
  }
  call.is_posted = posted == Status::kOk;
  return posted;
}

void MeshLaneState::start_stalled() noexcept {
  engine::Fifo<Peer> again;
  while (Peer* const peer = stalled_.first()) {
    stalled_.pop();
    Status posted = Status::kOk;
    while (Call* const call = peer->starting.first()) {
      posted = post(*call);
      if (posted == Status::kAgain) break;
      peer->starting.pop();
      if (posted != Status::kOk) end_operation(*call, {.status = posted});
    }
    peer->is_stalled = posted == Status::kAgain;
    if (peer->is_stalled) again.push(*peer);
  }
  stalled_ = again;
}

// --- taking in ----------------------------------------------------------------------------------------------------

void MeshLaneState::take_in(Deadline deadline) noexcept {
  const Turn turn(*this);
  if (!turn || is_closed_) return;
  if (poll() != 0 || deadline.passed()) return;
  lane_.loop().wait(deadline);
  (void)poll();
}

std::size_t MeshLaneState::poll() noexcept {
  if (is_closed_) return 0;
  ended_ = 0;
  std::array<mesh::Completion, 16> completions;
  for (int i = 0; i < kPolls; ++i) {
    const std::size_t count = lane_.poll(completions, mesh::Which::kAll);
    std::ranges::for_each(std::span(completions).first(count), [this](const auto& each) { on_completion(each); });
    if (count < completions.size()) break;
  }
  start_stalled();
  if (quarantined() != 0) drop_abandoned_receives();
  return ended_;
}

Status MeshLaneState::collect_until(std::uint32_t /*slot*/, Deadline deadline) noexcept {
  if (is_closed_) return Status::kClosed;
  if (poll() != 0) return Status::kOk;
  lane_.loop().wait(deadline);
  return poll() != 0 || !deadline.passed() ? Status::kOk : Status::kTimedOut;
}

void MeshLaneState::on_completion(const mesh::Completion& completion) noexcept {
  using Of = mesh::Completion::Kind;
  Peer& peer = peers_[completion.peer];
  switch (completion.kind) {
    case Of::kSend:
    case Of::kWrite:
    case Of::kRead:
    case Of::kAtomic: return on_operation(completion);
    case Of::kReceive:
    case Of::kWritten: return on_arrival(completion);
    case Of::kJoined: peer.gone = Status::kOk; return;
    case Of::kLeft: return on_left(peer, completion.status);
  }
}

void MeshLaneState::on_operation(const mesh::Completion& completion) noexcept {
  // Else it was started past this object.
  if (!is_current(completion.cookie)) return;
  Call& call = calls_[static_cast<std::uint32_t>(completion.cookie)];
  end_operation(call, {.value = completion.old, .status = completion.status});
}

void MeshLaneState::end_operation(Call& call, const End& end) noexcept {
  Peer& peer = peers_[call.request.peer];
  const std::uint64_t number = call.number;
  --peer.under_way;
  finish(call, end);
  engine::Fifo<Call> left;
  while (Call* const flush = peer.flushing.first()) {
    peer.flushing.pop();
    if (number > flush->number || --flush->left != 0) {
      left.push(*flush);
    } else {
      finish(*flush, {});
    }
  }
  peer.flushing = left;
}

void MeshLaneState::finish(Call& call, const End& end) noexcept {
  ++ended_;
  complete(slot_of(call), end);
}

// --- messages -----------------------------------------------------------------------------------------------------

void MeshLaneState::on_arrival(const mesh::Completion& completion) noexcept {
  Arrival* const arrival = free_.first();
  VERBENA_CHECK(arrival != nullptr);  // One for each receive that a peer can use.
  free_.pop();
  arrival->completion = completion;
  Peer& peer = peers_[completion.peer];
  peer.arrived.push(*arrival);
  feed(peer);
}

void MeshLaneState::feed(Peer& peer) noexcept {
  while (Call* const call = peer.receiving.first()) {
    Arrival* const arrival = peer.arrived.first();
    const bool is_dropped = is_abandoned(slot_of(*call));
    if (arrival == nullptr && !is_dropped) return;
    peer.receiving.pop();
    if (is_dropped) {
      finish(*call, {});
      continue;
    }
    const End end = take(*call, arrival->completion);
    if (end.status != Status::kBufferTooSmall) drop(peer, *arrival);
    finish(*call, end);
  }
}

End MeshLaneState::take(const Call& call, const mesh::Completion& message) noexcept {
  const std::size_t element_bytes = call.request.element_bytes;
  const std::size_t bytes = message.bytes.size();
  const bool is_written = message.kind == mesh::Completion::Kind::kWritten;
  std::size_t offset = 0;
  if (is_written) {
    const auto* const memory = lane_.memory_at(reinterpret_cast<std::uintptr_t>(message.bytes.data()), bytes);
    if (memory != nullptr) offset = static_cast<std::size_t>(message.bytes.data() - memory->address);
  }
  if (bytes % element_bytes != 0 || offset % element_bytes != 0)
    return {.status = note(Status::kBadArgument, call.request.call,
                           "the peer sent {} bytes, at offset {}, and elements have {} bytes: the message is gone",
                           bytes, offset, element_bytes)};
  if (!is_written && bytes > call.request.bytes.size())
    return {.status = note(Status::kBufferTooSmall, call.request.call,
                           "the segment must have {} bytes for the message that waits; got {}", bytes,
                           call.request.bytes.size())};
  if (!is_written && bytes != 0) std::memcpy(call.request.bytes.data(), message.bytes.data(), bytes);
  using Arrived = End::Arrived;
  return {.value = bytes / element_bytes,
          .first = offset / element_bytes,
          .immediate = message.immediate.value_or(0),
          .arrived = is_written          ? Arrived::kWritten
                     : message.immediate ? Arrived::kSentWithImmediate
                                         : Arrived::kSent};
}

void MeshLaneState::drop(Peer& peer, Arrival& arrival) noexcept {
  peer.arrived.pop();
  if (arrival.completion.kind == mesh::Completion::Kind::kReceive) (void)lane_.release(arrival.completion);
  free_.push(arrival);
}

void MeshLaneState::drop_abandoned_receives() noexcept {
  for (Call& call : calls_) {
    const std::uint32_t slot = slot_of(call);
    if (call.request.kind != Kind::kReceive || !is_abandoned(slot)) continue;
    peers_[call.request.peer].receiving.remove(call);
    finish(call, {});
  }
}

void MeshLaneState::on_left(Peer& peer, Status reason) noexcept {
  peer.gone = reason;
  feed(peer);
  while (Call* const call = peer.receiving.first()) {
    peer.receiving.pop();
    finish(*call, {.status = reason});
  }
}

// --- the end ------------------------------------------------------------------------------------------------------

void MeshLaneState::close() noexcept {
  {
    const Turn turn(*this);
    // Another thread would go on with a lane that is not its.
    VERBENA_CHECK(static_cast<bool>(turn));
    stalled_.clear();
    for (Peer& peer : peers_) {
      while (Call* const call = peer.starting.first()) {
        peer.starting.pop();
        end_operation(*call, {.status = Status::kClosed});
      }
      peer.is_stalled = false;
      on_left(peer, Status::kClosed);
      while (Arrival* const arrival = peer.arrived.first()) drop(peer, *arrival);
    }
    lane_.flush();
    const Deadline limit = Deadline::after(kDrain);
    const auto is_quiet = [this] {
      return std::ranges::all_of(peers_, [](const Peer& each) { return each.under_way == 0; });
    };
    while (!is_quiet() && !limit.passed())
      if (poll() == 0) lane_.loop().wait(limit);
    // What is with the NIC still keeps its memory for good.
    for (Peer& peer : peers_)
      while (Arrival* const arrival = peer.arrived.first()) drop(peer, *arrival);
    is_closed_ = true;
    lane_.has_owner = false;
    Driven::settle();  // Coroutines that waited have been told, and this is polled no more.
  }
  end();
}

}  // namespace detail

// --- lanes --------------------------------------------------------------------------------------------------------

Result<MeshLane> MeshLane::over(mesh::Lane& lane, MeshLaneOptions options) {
  constexpr const char* kCall = "typed::MeshLane::over";
  return api::guarded(kCall, [&]() -> Result<MeshLane> {
    VERBENA_TRY(check_limit(kCall, "operations", options.operations, 1, 65536));
    constexpr std::uint64_t kMostMs = std::chrono::milliseconds(std::chrono::days{12}).count();
    VERBENA_TRY(check_limit(kCall, "timeout in ms", static_cast<std::uint64_t>(options.timeout.count()), 1, kMostMs));
    auto& of = static_cast<mesh::LaneOfMesh&>(lane);  // There are no others.
    if (of.has_owner) return fail(Status::kBusy, kCall, 0, "there is a MeshLane over lane {} already", of.thread());
    MeshLane made;
    made.state_ = new detail::MeshLaneState(of, options);
    of.has_owner = true;
    return made;
  });
}

void MeshLane::close() noexcept {
  detail::MeshLaneState* const state = std::exchange(state_, nullptr);
  // In a forked child it belongs to the parent.
  if (state == nullptr || is_forked()) return;
  const CancellationHeld held;
  state->close();
}

bool MeshLane::is_here(unsigned peer) const noexcept { return state_ != nullptr && state_->lane().is_here(peer); }

Result<void> MeshLane::publish_window(std::string_view name, const rdma::Window& window, std::size_t offset,
                                      std::size_t bytes) {
  constexpr const char* kCall = "typed::MeshLane::publish";
  return api::guarded(kCall, [&]() -> Result<void> {
    if (state_ == nullptr) return fail(Status::kClosed, kCall, 0, "there is no lane");
    if (bytes == 0) return fail(Status::kOutOfRange, kCall, 0, "the elements are not inside the region");
    return state_->lane().mesh().publish(name, {reinterpret_cast<std::byte*>(window.address) + offset, bytes});
  });
}

detail::Started MeshLane::start(const detail::MeshRequest& request) noexcept {
  return state_ != nullptr ? state_->start(request)
                           : detail::Started(note(Status::kClosed, request.call, "there is no lane"));
}

std::size_t MeshLane::quarantined() const noexcept { return state_ != nullptr ? state_->quarantined() : 0; }

Status MeshLane::settle(Deadline deadline) noexcept {
  return state_ != nullptr ? state_->settle(deadline, "typed::MeshLane::settle") : Status::kOk;
}

}  // namespace verbena::typed
