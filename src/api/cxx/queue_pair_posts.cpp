// Queue pairs of the typed API: what is posted, and how it ends.
#include "api/cxx/queue_pair_state.hpp"

#include "session/session.hpp"

#include <arpa/inet.h>

#include <algorithm>

namespace verbena::typed::detail {
namespace {

using engine::QueuePair;
namespace wr = engine::wr;

[[nodiscard]] ibv_wr_opcode opcode_of(Verb verb) noexcept {
  switch (verb) {
    case Verb::kWrite: return IBV_WR_RDMA_WRITE;
    case Verb::kWriteWithImmediate: return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Verb::kSend: return IBV_WR_SEND;
    case Verb::kSendWithImmediate: return IBV_WR_SEND_WITH_IMM;
    case Verb::kRead: return IBV_WR_RDMA_READ;
    case Verb::kFetchAdd: return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Verb::kCompareSwap: return IBV_WR_ATOMIC_CMP_AND_SWP;
  }
  __builtin_unreachable();
}

[[nodiscard]] bool is_atomic(Verb verb) noexcept { return verb == Verb::kFetchAdd || verb == Verb::kCompareSwap; }
[[nodiscard]] bool is_send(Verb verb) noexcept { return verb == Verb::kSend || verb == Verb::kSendWithImmediate; }

/// The right to the peer's memory that it needs; 0: it goes to no memory.
[[nodiscard]] std::uint32_t access_for(Verb verb) noexcept {
  if (is_send(verb)) return 0;
  if (is_atomic(verb)) return IBV_ACCESS_REMOTE_ATOMIC;
  return verb == Verb::kRead ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
}

[[nodiscard]] ibv_sge sge_of(const Piece& piece) noexcept {
  return {.addr = reinterpret_cast<std::uintptr_t>(piece.data),
          .length = static_cast<std::uint32_t>(piece.bytes),
          .lkey = piece.lkey};
}

void fill(const Request& request, ibv_send_wr& wr) noexcept {
  wr = {};
  wr.opcode = opcode_of(request.verb);
  wr.imm_data = htonl(request.immediate);
  if (is_atomic(request.verb)) {
    wr.wr.atomic = {.remote_addr = request.remote.address,
                    .compare_add = request.operand,
                    .swap = request.swap,
                    .rkey = request.remote.rkey};
  } else if (!is_send(request.verb)) {
    wr.wr.rdma = {.remote_addr = request.remote.address, .rkey = request.remote.rkey};
  }
}

}  // namespace

// --- checks -------------------------------------------------------------------------------------------------------

Status QueuePairState::check_usable(const char* call) const noexcept {
  const Status reason = failure();
  if (reason == Status::kOk) [[likely]]
    return Status::kOk;
  return note(reason, call, "the queue pair {}", pair_ ? "has failed: make a new one" : "is closed");
}

Status QueuePairState::check_pieces(const char* call, std::span<const Piece> pieces,
                                    std::uint64_t& bytes) const noexcept {
  bytes = 0;
  if (pieces.size() > settings_.max_sge)
    return note(Status::kBadArgument, call, "{} segments, and max_sge is {}", pieces.size(), settings_.max_sge);
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) return note(Status::kBadArgument, call, "a segment has no elements");
    if (piece.claim != nullptr && !piece.claim->is_of(*settings_.node))
      return note(Status::kLocalAccess, call, "a segment is of another node's memory than the queue pair's");
    bytes += piece.bytes;
  }
  if (bytes <= max_message_) [[likely]]
    return Status::kOk;
  return note(Status::kTooLong, call, "{} bytes, and the NIC takes {} at once", bytes, max_message_);
}

Status QueuePairState::check_target(const Request& request, std::uint64_t bytes) noexcept {
  const std::uint32_t access = access_for(request.verb);
  if (access == 0) return Status::kOk;
  if (!nic::may_be_of(request.remote.peer, peer_number_)) [[unlikely]]
    return note(Status::kBadArgument, request.call, "the remote segment is {}", session::kAnothersMemory);
  if (request.remote.length < bytes)
    return note(Status::kBadArgument, request.call, "{} bytes, and the remote segment has {}", bytes,
                request.remote.length);
  if (access != IBV_ACCESS_REMOTE_WRITE && std::min(local_.qp.max_rd_atomic, remote_.qp.max_rd_atomic) == 0)
    return note(Status::kUnsupported, request.call, "max_reads is 0 on one side");
  const Status checked =
      windows_.check({.address = request.remote.address, .length = bytes, .rkey = request.remote.rkey}, access);
  if (checked == Status::kOk) [[likely]]
    return checked;
  return note(checked, request.call,
              "{} bytes at {:#x} with key {:#x} are not inside a window that was opened, or its "
              "peer does not allow it",
              bytes, request.remote.address, request.remote.rkey);
}

Status QueuePairState::make_request(const Request& request, ibv_send_wr& wr, std::span<ibv_sge> sges) noexcept {
  std::uint64_t bytes = 0;
  if (const Status checked = check_pieces(request.call, request.pieces, bytes); checked != Status::kOk) return checked;
  if (is_atomic(request.verb)) bytes = sizeof(std::uint64_t);
  if (const Status checked = check_target(request, bytes); checked != Status::kOk) return checked;
  fill(request, wr);
  wr.sg_list = sges.data();
  wr.num_sge = static_cast<int>(request.pieces.size());
  std::ranges::transform(request.pieces, sges.begin(), sge_of);
  if (bytes <= max_inline_ && request.verb != Verb::kRead && !is_atomic(request.verb)) wr.send_flags = IBV_SEND_INLINE;
  return Status::kOk;
}

Status QueuePairState::make_room(const char* call, std::size_t count) noexcept {
  if (pair_->room() >= count) [[likely]]
    return Status::kOk;
  collect_now();
  if (pair_->room() >= count) return Status::kOk;
  if (const Status usable = check_usable(call); usable != Status::kOk) return usable;
  return note(Status::kAgain, call, "{} of {} places of the send queue are free: wait for an operation", pair_->room(),
              settings_.send_depth);
}

// --- posts --------------------------------------------------------------------------------------------------------

Started QueuePairState::start(const Request& request) noexcept {
  return StartedOperations::start(request.call, [&](std::uint64_t cookie) {
    if (const Status usable = check_usable(request.call); usable != Status::kOk) return usable;
    if (const Status room = make_room(request.call, 1); room != Status::kOk) return room;
    ibv_send_wr wr;
    if (const Status made = make_request(request, wr, sges_); made != Status::kOk) return made;
    const auto slot = static_cast<std::uint32_t>(cookie);
    if (is_atomic(request.verb)) {
      if (!words_mr_) return note(Status::kUnsupported, request.call, "the NIC has no atomics");
      sges_[0] = {.addr = reinterpret_cast<std::uintptr_t>(&words_[slot]),
                  .length = sizeof(std::uint64_t),
                  .lkey = words_mr_->lkey};
      wr.num_sge = 1;
    }
    sent_[slot] = {.last = pair_->sends().position() + 1};
    if (!pair_->post(wr, tag_of(cookie), QueuePair::Signal::kAlways)) return check_usable(request.call);
    return Status::kOk;
  });
}

Started QueuePairState::start_list(const char* call, std::span<ibv_send_wr> list) noexcept {
  return StartedOperations::start(call, [&](std::uint64_t cookie) {
    if (list.empty()) return note(Status::kBadArgument, call, "the batch is empty");
    if (const Status usable = check_usable(call); usable != Status::kOk) return usable;
    if (const Status room = make_room(call, list.size()); room != Status::kOk) return room;
    const auto position = pair_->sends().position();
    sent_[static_cast<std::uint32_t>(cookie)] = {.last = position + static_cast<std::uint32_t>(list.size())};
    // Where the device takes a part of it, the batch is under way until that has drained.
    if (!pair_->post_list(list, tag_of(cookie)) && pair_->sends().position() == position) return check_usable(call);
    return Status::kOk;
  });
}

Started QueuePairState::start_receive(const char* call, std::span<const Piece> pieces) noexcept {
  return StartedOperations::start(call, [&](std::uint64_t cookie) {
    if (const Status usable = check_usable(call); usable != Status::kOk) return usable;
    std::uint64_t bytes = 0;
    if (const Status checked = check_pieces(call, pieces, bytes); checked != Status::kOk) return checked;
    if (receives_ == settings_.receive_depth) collect_now();
    if (receives_ == settings_.receive_depth)
      return note(Status::kAgain, call, "{} receives are posted, which is receive_depth", receives_);
    std::ranges::transform(pieces, sges_.begin(), sge_of);
    ibv_recv_wr wr{};
    wr.wr_id = tag_of(cookie) | wr::kReceiveBit;
    wr.sg_list = sges_.data();
    wr.num_sge = static_cast<int>(pieces.size());
    if (!pair_->post_receives(wr, 1)) return check_usable(call);
    ++receives_;
    return Status::kOk;
  });
}

Status QueuePairState::post_unsignaled(const Request& request) noexcept {
  const Turn turn(*this);
  if (!turn) return refuse_turn(request.call);
  if (const Status usable = check_usable(request.call); usable != Status::kOk) return usable;
  if (const Status room = make_room(request.call, 1); room != Status::kOk) return room;
  ibv_send_wr wr;
  fill(request, wr);
  sges_[0] = sge_of(request.pieces[0]);
  wr.sg_list = sges_.data();
  wr.num_sge = 1;
  if (sges_[0].length <= max_inline_ && request.verb != Verb::kRead) wr.send_flags = IBV_SEND_INLINE;
  return pair_->post(wr, wr::kNoTag, QueuePair::Signal::kSometimes) ? Status::kOk : check_usable(request.call);
}

// --- completions --------------------------------------------------------------------------------------------------

void QueuePairState::collect_now() noexcept {
  if (is_up_ && loop_) loop_->poll();
}

void QueuePairState::take_in(Deadline deadline) noexcept {
  const Turn turn(*this);
  if (!turn || !loop_) return;
  if (deadline.passed()) {
    collect_now();
  } else {
    loop_->wait(deadline);
  }
}

Status QueuePairState::collect_until(std::uint32_t /*slot*/, Deadline deadline) noexcept {
  // Completions of a queue pair that its loop does not know would go to nobody.
  if (!is_up_) return note(Status::kAgain, "typed::Operation::wait", "the queue pair is not connected yet");
  if (!loop_) return Status::kClosed;
  return loop_->wait(deadline) != 0 || !deadline.passed() ? Status::kOk : Status::kTimedOut;
}

void QueuePairState::handle(std::span<const ibv_wc> completions) noexcept {
  for (const ibv_wc& completion : completions) {
    if (completion.status != IBV_WC_SUCCESS || pair_->reason() != Status::kOk) [[unlikely]] {
      on_failed(completion);
    } else if (wr::is_receive(completion.wr_id)) {
      pair_->took_receive();
      on_receive(completion);
    } else {
      pair_->retire(completion.wr_id);
      on_sent(completion.wr_id, Status::kOk);
    }
  }
}

void QueuePairState::on_failed(const ibv_wc& completion) noexcept {
  const bool is_first = pair_->reason() == Status::kOk;
  pair_->handle_failed(completion);
  const bool is_receive = wr::is_receive(completion.wr_id);
  if (completion.status == IBV_WC_SUCCESS)
    return is_receive ? on_receive(completion) : on_sent(completion.wr_id, Status::kOk);
  const Status status = is_first ? pair_->reason() : Status::kFlushed;
  if (!is_receive) return on_sent(completion.wr_id, status);
  --receives_;
  finish(completion.wr_id, {.status = status});
}

void QueuePairState::on_receive(const ibv_wc& completion) noexcept {
  --receives_;
  End end{.value = completion.byte_len, .arrived = End::Arrived::kSent};
  if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) {
    end.immediate = ntohl(completion.imm_data);
    end.arrived =
        completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? End::Arrived::kWritten : End::Arrived::kSentWithImmediate;
  }
  finish(completion.wr_id, end);
}

void QueuePairState::on_sent(std::uint64_t id, Status status) noexcept {
  const std::uint32_t slot = wr::slot_of(id);
  if (slot >= sent_.size()) return;  // Unsignaled, or the drain's own.
  Sent& sent = sent_[slot];
  if (wr::position_of(id) != sent.last) {
    // One of a list, which goes on to its last.
    if (sent.early == Status::kOk) sent.early = status;
    return;
  }
  finish(id,
         {.value = slot < words_.size() ? words_[slot] : 0, .status = sent.early != Status::kOk ? sent.early : status});
}

void QueuePairState::finish(std::uint64_t id, End end) noexcept {
  const std::uint32_t slot = wr::slot_of(id);
  const auto generation = static_cast<std::uint16_t>(cookie_of(slot) >> 32);
  VERBENA_DCHECK(generation == wr::generation_of(id));
  if (generation == wr::generation_of(id)) complete(slot, end);
}

// Requests that were never flushed are not in flight either.
void QueuePairState::on_drained() noexcept {
  receives_ = 0;
  complete_all(Status::kFlushed);
}

// --- batches ------------------------------------------------------------------------------------------------------

struct BatchRequests::List {
  explicit List(std::size_t capacity) : requests(capacity), sges(capacity) {}
  std::vector<ibv_send_wr> requests;
  std::vector<ibv_sge> sges;  ///< One for each request.
  std::size_t count = 0;
};

BatchRequests::BatchRequests(QueuePairState* state, std::size_t capacity)
    : state_(state), list_(std::make_unique<List>(capacity)) {
  state_->hold();
}

BatchRequests::~BatchRequests() { state_->release(); }

Status BatchRequests::add(const Request& request) noexcept {
  List& list = *list_;
  if (list.count == list.requests.size())
    return note(Status::kLimit, request.call, "the batch has its {} requests", list.count);
  ibv_send_wr& wr = list.requests[list.count];
  const std::span place(&list.sges[list.count], 1);
  if (const Status made = state_->make_request(request, wr, place); made != Status::kOk) return made;
  if (list.count != 0) list.requests[list.count - 1].next = &wr;
  ++list.count;
  return Status::kOk;
}

void BatchRequests::remove_last() noexcept {
  List& list = *list_;
  --list.count;
  if (list.count != 0) list.requests[list.count - 1].next = nullptr;
}

Started BatchRequests::post(const char* call) noexcept {
  return state_->start_list(call, std::span(list_->requests).first(list_->count));
}

}  // namespace verbena::typed::detail
