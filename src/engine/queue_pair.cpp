#include "engine/queue_pair.hpp"

#include "base/cancellation.hpp"
#include "base/error.hpp"
#include "nic/footprint.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace verbena::engine {

Status WindowTable::add(const nic::Window& window) noexcept {
  if (window.address + window.length < window.address) return Status::kBadArgument;
  if (count_ == windows_.size()) return Status::kLimit;
  windows_[count_++] = window;
  return Status::kOk;
}

Status WindowTable::remove(const nic::Window& window) noexcept {
  for (std::size_t i = kFirst; i < count_; ++i) {
    if (windows_[i].rkey != window.rkey || windows_[i].address != window.address || windows_[i].length != window.length)
      continue;
    windows_[i] = windows_[--count_];
    windows_[count_] = kNone;
    last_ = kFirst;
    return Status::kOk;
  }
  return Status::kNotFound;
}

Status WindowTable::check_all(RemoteSpan span, std::uint32_t access) noexcept {
  Status refusal = Status::kNotFound;
  for (std::size_t i = last_ == kLent ? kLent : kFirst; i < count_; ++i) {
    if (windows_[i].rkey != span.rkey) continue;
    const Status status = check_in(windows_[i], span, access);
    if (status == Status::kOk) {
      last_ = i;
      return status;
    }
    // A window that lacks the right is a better reason than one that is elsewhere.
    if (refusal != Status::kRemoteAccess) refusal = status;
  }
  return refusal;
}

Status status_of(ibv_wc_status status, Status qp_failure, Heard heard) noexcept {
  // kFlushed means that no event of the device gave a reason: the completion's own status is better.
  const bool has_reason = qp_failure != Status::kOk && qp_failure != Status::kFlushed;
  switch (status) {
    case IBV_WC_SUCCESS: return Status::kOk;
    case IBV_WC_LOC_LEN_ERR: return Status::kTooLong;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return Status::kLocalAccess;
    case IBV_WC_REM_ACCESS_ERR: return Status::kRemoteAccess;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_REM_OP_ERR: return Status::kRemoteInvalid;
    case IBV_WC_RNR_RETRY_EXC_ERR: return Status::kRnrExceeded;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      if (!has_reason && heard == Heard::kBefore) return Status::kPeerLost;
      return qp_failure == Status::kPeerLost ? Status::kPeerLost : Status::kRetryExceeded;
    case IBV_WC_WR_FLUSH_ERR: return qp_failure == Status::kOk ? Status::kFlushed : qp_failure;
    default: return has_reason ? qp_failure : Status::kDevice;
  }
}

bool HeldRequests::fits(const ibv_send_wr& request) const noexcept {
  if (places_.empty() || request.num_sge < 0 || static_cast<std::uint32_t>(request.num_sge) > kMaxSge) return false;
  if ((request.send_flags & IBV_SEND_INLINE) == 0) return true;
  std::uint64_t bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) bytes += request.sg_list[i].length;
  return bytes <= kHeldInlineBytes;
}

void HeldRequests::add(const ibv_send_wr& request) noexcept {
  VERBENA_DCHECK(fits(request) && !full());
  Place& place = places_[count_];
  place.request = request;
  place.request.next = nullptr;
  place.request.sg_list = place.sge.data();
  const std::span given(request.sg_list, static_cast<std::size_t>(request.num_sge));
  if ((request.send_flags & IBV_SEND_INLINE) == 0) {
    std::ranges::copy(given, place.sge.begin());
  } else {
    // Copies the poster's bytes into one segment, because the poster may reuse them when `post` returns.
    std::uint32_t filled = 0;
    for (const ibv_sge& part : given) {
      std::memcpy(place.data.data() + filled, reinterpret_cast<const void*>(part.addr), part.length);
      filled += part.length;
    }
    place.sge[0] = {.addr = reinterpret_cast<std::uintptr_t>(place.data.data()), .length = filled, .lkey = 0};
    place.request.num_sge = 1;
  }
  if (count_ != 0) places_[count_ - 1].request.next = &place.request;
  ++count_;
}

bool QueuePair::keep_for_doorbell(ibv_send_wr& request, Signal signal) noexcept {
  if (!held_.fits(request)) {
    flush();
    if (reason_ != Status::kOk) return false;
    if (signal == Signal::kWithDoorbell) sign(request);
    // The flush may have begun a new count, but this request was counted in the old one.
    if ((request.send_flags & IBV_SEND_SIGNALED) == 0) sends_.count_again();
    return ring(request);
  }
  if (!is_holding()) loop_.holding_.push_back(this);
  held_.add(request);
  held_wants_signal_ |= signal == Signal::kWithDoorbell;
  if (held_.full()) flush();
  return reason_ == Status::kOk;
}

void QueuePair::flush() noexcept {
  if (!is_holding()) return;
  std::erase(loop_.holding_, this);
  if (std::exchange(held_wants_signal_, false)) sign(held_.last());
  (void)ring(held_.first());
  held_.clear();
}

void QueuePair::forget_held() noexcept {
  if (is_holding()) std::erase(loop_.holding_, this);
  held_wants_signal_ = false;
  held_.clear();
}

QueuePair::~QueuePair() { VERBENA_CHECK(!qp_); }

nic::QpOptions QueuePair::qp_options(const QueueOptions& options, const nic::Limits& limits) noexcept {
  nic::QpOptions qp;
  qp.max_send_wr = options.sends + kReserve;
  qp.max_recv_wr = std::max(options.receives, 1u);
  qp.max_send_sge = options.send_sge;
  qp.max_recv_sge = options.receive_sge;
  qp.type = options.type;
  qp.max_inline = std::min(options.max_inline, limits.max_inline);
  return qp;
}

host::Footprint QueuePair::footprint(nic::Kind kind, const nic::Limits& limits, const QueueOptions& options) {
  host::Footprint pools;
  pools.add({.name = "requests that wait for a doorbell", .bytes_each = HeldRequests::bytes(options.held)});
  pools.add("NIC", 1, nic::qp_footprint(kind, qp_options(options, limits)));
  return pools;
}

Result<void> QueuePair::open(ibv_pd* pd, const QueueOptions& options) {
  const std::uint32_t entries = completions_needed(options.sends, options.receives);
  VERBENA_TRY(loop_.reserve(entries));
  reserved_entries_ = entries;
  nic::QpOptions qp = qp_options(options, nic().limits());
  qp.send_cq = qp.recv_cq = loop_.cq();
  VERBENA_ASSIGN(ibv_qp * made, nic().create_qp(pd, qp));
  qp_ = nic::Qp(nic(), made);
  qp_num_ = made->qp_num;
  max_inline_ = qp.max_inline;
  is_reliable_ = options.type == IBV_QPT_RC;
  sends_.open(options.sends, kReserve, options.first_position);
  held_.open(options.held);
  takes_messages_ = options.takes_messages && direct_ != nullptr && direct_->poll != nullptr;
  return {};
}

void QueuePair::attach() noexcept {
  VERBENA_CHECK(place_ == Place::kOutside && qp_);
  place_ = Place::kMailbox;
  arrival_.pair = this;
  arrival_.open = enter_table_of;
  loop_.post(arrival_);
}

void QueuePair::enter_table_of(Mailbox::Letter& letter) noexcept { static_cast<Arrival&>(letter).pair->enter_table(); }

void QueuePair::enter_table() noexcept {
  loop_.pairs_.insert(*this, qp_num_);
  place_ = Place::kTable;
  seen_ = sends_.position() - 1;  // As if it had posted, because the peer may not be ready yet.
  owner_.on_attached();
}

void QueuePair::leave_loop() noexcept {
  VERBENA_DCHECK(is_drained());
  loop_.remove(*this);
}

void QueuePair::shut() noexcept {
  loop_.remove(*this);
  lifeline_ = {};
  qp_.reset();
  if (reserved_entries_ != 0) loop_.unreserve(std::exchange(reserved_entries_, 0));
}

void QueuePair::handle_failed(const ibv_wc& completion) noexcept {
  const bool hears_of_peers = nic().capabilities().hears_of_peers;
  const Heard before = hears_of_peers ? Heard::kBefore : heard();
  if (wr::is_receive(completion.wr_id)) {
    took_receive();
  } else {
    retire(completion.wr_id);
  }
  if (completion.status == IBV_WC_SUCCESS || reason_ != Status::kOk) return;
  const Status reason = status_of(completion.status, nic().qp_failure(qp_.get()), before);
  // A NIC that learns of peers' deaths itself has no path that could be wrong: a peer that does not answer is gone.
  fail(hears_of_peers && reason == Status::kRetryExceeded ? Status::kPeerLost : reason);
}

void QueuePair::fail(Status reason) noexcept {
  VERBENA_DCHECK(reason != Status::kOk);
  if (reason_ != Status::kOk || !qp_) return;
  reason_ = reason;
  takes_messages_ = false;
  loop_.expect_no_more(*this);
  // Requests that wait for their doorbell were never posted: the marker's position is after theirs, and retires them.
  forget_held();
  drain_deadline_ = Deadline::after(kDrainTimeout);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  const bool moved = nic().modify_qp(qp_.get(), attr, IBV_QP_STATE, drain_deadline_).has_value();
  if (!moved) drain_deadline_ = Deadline::now();
  if (moved && sends_.in_flight() != 0) post_marker();
  phase_ = Phase::kDraining;
  loop_.draining_.push_back(this);
}

bool QueuePair::post_list(std::span<ibv_send_wr> list, std::uint32_t tag) noexcept {
  VERBENA_DCHECK(!list.empty() && list.size() <= room() && !is_holding());
  std::uint32_t position = sends_.position();
  for (ibv_send_wr& each : list) each.wr_id = std::uint64_t{++position} << 32 | tag;
  sign(list.back());
  const ibv_send_wr* const bad = is_soft_roce_ ? post_by_system_call(list.front()) : post(list.front());
  const auto posted = bad == nullptr ? list.size() : static_cast<std::size_t>(bad - list.data());
  for (std::size_t i = 0; i < posted; ++i) sends_.post();
  counters_.work_requests += posted;
  ++counters_.doorbells;
  if (bad == nullptr) [[likely]]
    return true;
  fail(Status::kDevice);
  return false;
}

ibv_send_wr* QueuePair::post_by_system_call(ibv_send_wr& first) noexcept {
  const CancellationHeld held;
  return post(first);
}

// Sends before the error may have completed unsignaled, without a completion. A request posted after them in the error
// state is flushed after them: its completion means that all of them are done.
void QueuePair::post_marker() noexcept {
  ibv_send_wr marker{};
  marker.opcode = IBV_WR_SEND;
  marker.send_flags = IBV_SEND_SIGNALED;
  marker.wr_id = std::uint64_t{sends_.position() + 1} << 32 | wr::kNoTag;
  if (post_by_system_call(marker) == nullptr) {
    sends_.post();
  } else {
    drain_deadline_ = Deadline::now();
  }
}

// A WRITE of no bytes touches no memory, and the NIC ignores its key and address. Errors complete even if unsignaled,
// so an outstanding signaled request already reports the peer's death; unsignaled ones may have been answered long ago.
// There is room: the unsignaled tail is shorter than the queue.
void QueuePair::keep_alive() noexcept {
  // Nobody answers on an unreliable connection.
  if (reason_ != Status::kOk || !is_reliable_) return;
  const bool is_asking = sends_.in_flight() != sends_.since_signal();
  if (sends_.position() == seen_ && !is_asking) {
    ibv_send_wr ask{};
    ask.opcode = IBV_WR_RDMA_WRITE;
    if (post(ask, wr::kNoTag, Signal::kAlways)) ++counters_.keepalives;
  }
  seen_ = sends_.position();
}

void QueuePair::enter_drained() noexcept {
  // The flush did not come in time, or cannot come: destroying the QP also ends everything in flight.
  if (!nothing_in_flight()) {
    if (place_ == Place::kTable) loop_.pairs_.erase(qp_num_);
    place_ = Place::kOutside;
    lifeline_ = {};
    qp_.reset();
  }
  sends_.retire_all();
  receives_.posted = receives_.completed;
  phase_ = Phase::kDrained;
  owner_.on_drained();
}

}  // namespace verbena::engine
