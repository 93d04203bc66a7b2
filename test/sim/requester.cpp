#include "requester.hpp"

#include "objects.hpp"
#include "sim_nic.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace verbena::sim {

namespace {

constexpr Nanoseconds kMostBetweenPackets = 200;
constexpr Nanoseconds kMostPlacing = 600;
constexpr std::size_t kMostOnTheWire = 24;
constexpr std::uint8_t kRetryForEver = 7;  // The rnr_retry that never gives up (IBTA 9.7.5.2.8).

/// IBTA table 45: RNR NAK timer field.
constexpr std::uint32_t kRnrTimerUs[32] = {
    655360, 10,   20,   30,   40,    60,    80,    120,   160,   240,   320,   480,    640,    960,    1280,   1920,
    2560,   3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};

std::span<const ibv_sge> sges_of(const ibv_send_wr& wr) noexcept {
  return {wr.sg_list, static_cast<std::size_t>(wr.num_sge)};
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) noexcept {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    case IBV_WR_BIND_MW: return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
    default: return IBV_WC_SEND;
  }
}

/// ibv_modify_qp(3): the ACK timeout is 4.096 us * 2^timeout.
Nanoseconds ack_timeout(const SimQp& qp) noexcept { return Nanoseconds{4096} << qp.path.timeout; }

/// What ibv_post_send refuses: opcodes that the transport has not (IBTA table 36).
int check_opcode(const SimQp& qp, const ibv_send_wr& wr) noexcept {
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return 0;
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return qp.is_reliable() && (wr.send_flags & IBV_SEND_INLINE) == 0 ? 0 : EINVAL;
    case IBV_WR_SEND_WITH_INV: return qp.is_reliable() ? 0 : EINVAL;
    case IBV_WR_BIND_MW:
      return wr.bind_mw.mw != nullptr && wr.bind_mw.bind_info.mr != nullptr && wr.num_sge == 0 ? 0 : EINVAL;
    case IBV_WR_LOCAL_INV: return wr.num_sge == 0 ? 0 : EINVAL;
    default: return EOPNOTSUPP;
  }
}

}  // namespace

// --- posting ----------------------------------------------------------------------------------------------------

int Requester::check(const ibv_send_wr& wr) const noexcept {
  if (const int refused = check_opcode(qp_, wr); refused != 0 || is_local(wr.opcode)) return refused;
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp_.options.max_send_sge) return EINVAL;
  const std::uint64_t length = length_of(sges_of(wr));
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 && length > qp_.options.max_inline) return EINVAL;
  return length > qp_.nic.limits().max_message ? EMSGSIZE : 0;
}

bool Requester::is_full() const noexcept { return posted_ - retired_ >= qp_.options.max_send_wr; }

void Requester::post(const ibv_send_wr& wr) {
  SendRequest request{.wr = wr, .posted = ++posted_};
  if (!is_local(wr.opcode)) request.sges.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  request.length = length_of(request.sges);
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    for (const ibv_sge& sge : request.sges) {
      const auto* from = reinterpret_cast<const std::byte*>(sge.addr);
      request.inline_data.insert(request.inline_data.end(), from, from + sge.length);
    }
  }
  qp_.world().note({qp_.qp_num, wr.wr_id, static_cast<std::uint64_t>(wr.opcode), request.length});
  qp_.world().tell("{} posts {} {} of {} bytes", describe(qp_), name_of(wr.opcode), wr.wr_id, request.length);
  queue_.push_back(std::move(request));
  if (qp_.now == IBV_QPS_ERR) {
    flush();
  } else {
    pump_later();
  }
}

void Requester::start(std::uint32_t first_number) noexcept {
  next_number_ = number_of(first_number);
  retries_left_ = qp_.path.retry_count;
  rnr_retries_left_ = qp_.path.rnr_retry;
}

void Requester::reset() noexcept {
  queue_.clear();
  next_ = 0;
  posted_ = retired_ = 0;
  is_pumping_ = is_watched_ = waits_for_receive_ = is_flushing_ = false;
}

// --- sending ----------------------------------------------------------------------------------------------------

void Requester::pump_later() {
  if (std::exchange(is_pumping_, true)) return;
  qp_.later(qp_.world().random().below(kMostBetweenPackets), "pump", [this] {
    is_pumping_ = false;
    pump();
  });
}

bool Requester::may_go(const SendRequest& request) const noexcept {
  const auto sent = queue_.begin() + static_cast<std::ptrdiff_t>(next_);
  const auto reads =
      std::count_if(queue_.begin(), sent, [](const SendRequest& one) { return is_read_or_atomic(one.wr.opcode); });
  // IBTA 10.8.3.3: a fence waits for the READs and atomics before it. A bind or invalidation does without being asked:
  // it must not pull the memory away under a READ that is still to bring its bytes.
  const bool is_fenced = (request.wr.send_flags & IBV_SEND_FENCE) != 0 || is_local(request.wr.opcode);
  if (is_fenced && reads != 0) return false;
  // The responder keeps a resource for each READ and atomic until it is answered (IBTA 9.7.4.1.7).
  if (is_read_or_atomic(request.wr.opcode) && reads >= qp_.path.max_rd_atomic) return false;
  return next_ < kMostOnTheWire;
}

void Requester::pump() {
  if (qp_.now != IBV_QPS_RTS || waits_for_receive_ || next_ == queue_.size()) return;
  SendRequest& request = queue_[next_];
  if (request.failure != IBV_WC_SUCCESS || !may_go(request)) return;
  if (is_local(request.wr.opcode)) {
    // Repeated, it would fail: the ones behind which it stands may go out again, but it does not.
    if (!request.is_done) run_here(request);
  } else if (!request.is_done) {
    transmit(request);
  }
  if (request.failure == IBV_WC_SUCCESS) {
    ++next_;
    if (next_ != queue_.size()) pump_later();
  }
  complete();
}

void Requester::run_here(SendRequest& request) {
  KeyTable& keys = qp_.nic.keys();
  const ibv_send_wr& wr = request.wr;
  if (wr.opcode == IBV_WR_BIND_MW) {
    request.is_done = keys.bind(qp_, *wr.bind_mw.mw, wr.bind_mw.rkey, wr.bind_mw.bind_info);
  } else if (keys.may_invalidate(qp_, wr.invalidate_rkey)) {
    keys.invalidate(KeyTable::index_of(wr.invalidate_rkey));
    request.is_done = true;
  }
  // IBTA 11.6.2: both fail with a memory management operation error.
  if (!request.is_done) request.failure = IBV_WC_MW_BIND_ERR;
}

void Requester::transmit(SendRequest& request) {
  const ibv_send_wr& wr = request.wr;
  if (is_atomic(wr.opcode) && (request.sges.size() != 1 || request.length != sizeof(std::uint64_t))) {
    request.failure = IBV_WC_LOC_LEN_ERR;
    return;
  }
  if (is_read_or_atomic(wr.opcode) && !keys_hold(qp_, qp_.pd, request.sges, IBV_ACCESS_LOCAL_WRITE)) {
    request.failure = IBV_WC_LOC_PROT_ERR;
    return;
  }
  const bool is_new = request.number == 0;
  if (is_new) request.number = next_number_++;
  const std::shared_ptr<Message> message = message_of(request);
  if (message == nullptr) {
    request.failure = IBV_WC_LOC_PROT_ERR;
    return;
  }
  qp_.world().tell("{} sends {} {}{}", describe(qp_), name_of(wr.opcode), wr.wr_id, is_new ? "" : " again");
  send_message(qp_, message);
  if (qp_.is_reliable()) return watch();
  // IBTA 9.8.3: on an unreliable connection a request is complete when it is sent.
  request.is_done = true;
}

std::shared_ptr<Message> Requester::message_of(SendRequest& request) const {
  const ibv_send_wr& wr = request.wr;
  auto message = std::make_shared<Message>();
  message->opcode = wr.opcode;
  message->number = request.number;
  message->length = request.length;
  message->is_solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  // The union of both: the key to invalidate lies where the immediate does.
  message->immediate = wr.imm_data;
  if (is_atomic(wr.opcode)) {
    message->address = wr.wr.atomic.remote_addr;
    message->rkey = wr.wr.atomic.rkey;
    message->operand = wr.wr.atomic.compare_add;
    message->swap = wr.wr.atomic.swap;
    return message;
  }
  if (is_write(wr.opcode) || wr.opcode == IBV_WR_RDMA_READ) {
    message->address = wr.wr.rdma.remote_addr;
    message->rkey = wr.wr.rdma.rkey;
  }
  if (wr.opcode == IBV_WR_RDMA_READ) return message;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    message->data = request.inline_data;
    return message;
  }
  message->data.resize(request.length);
  return gather(qp_, request.sges, message->data) ? message : nullptr;
}

// --- answers ----------------------------------------------------------------------------------------------------

SendRequest* Requester::find(std::uint64_t number) noexcept {
  for (std::size_t i = 0; i < next_; ++i) {
    if (queue_[i].number == number && !is_local(queue_[i].wr.opcode)) return &queue_[i];
  }
  return nullptr;
}

bool Requester::awaits_answer() const noexcept {
  const auto sent = queue_.begin() + static_cast<std::ptrdiff_t>(next_);
  return std::any_of(queue_.begin(), sent, [](const SendRequest& one) { return !one.is_done && !one.is_arriving; });
}

void Requester::made_progress() noexcept {
  progress_ = qp_.world().now();
  retries_left_ = qp_.path.retry_count;
  rnr_retries_left_ = qp_.path.rnr_retry;
}

void Requester::on_answer(const std::shared_ptr<const Answer>& answer) {
  // An answer tells of all messages before it (IBTA 9.7.5.1.2, coalesced acknowledges). READs and atomics need the
  // bytes of their own.
  const auto sent = queue_.begin() + static_cast<std::ptrdiff_t>(next_);
  for (auto one = queue_.begin(); one != sent; ++one) {
    const bool is_told =
        one->number < answer->number || (one->number == answer->number && answer->kind == Answer::Kind::kDone);
    if (!is_told || one->is_done || is_read_or_atomic(one->wr.opcode)) continue;
    one->is_done = true;
    made_progress();
  }
  SendRequest* const request = find(answer->number);
  if (request != nullptr && !request->is_done) {
    switch (answer->kind) {
      case Answer::Kind::kDone: break;
      case Answer::Kind::kData: take_data(*request, answer); break;
      case Answer::Kind::kRefused: request->failure = answer->status; break;
      case Answer::Kind::kNotReady: wait_for_receive(*answer); break;
    }
  }
  complete();
  pump_later();
}

void Requester::take_data(SendRequest& request, const std::shared_ptr<const Answer>& answer) {
  if (std::exchange(request.is_arriving, true)) return;
  made_progress();
  struct Arrival {
    std::size_t left = 0;
    bool is_well = true;
  };
  auto arrival = std::make_shared<Arrival>();
  // Cut by offset, not by address: the answer's packets are what reaches memory in pieces.
  const std::vector<Piece> pieces = cut_into_pieces(0, answer->data.size(), qp_.world().random());
  const auto end = [this, number = request.number, arrival] {
    SendRequest* const one = find(number);
    if (one == nullptr) return;
    if (arrival->is_well) {
      one->is_done = true;
    } else {
      one->failure = IBV_WC_LOC_PROT_ERR;  // Deregistered since it was sent.
    }
    complete();
    pump_later();
  };
  if (pieces.empty()) return end();
  arrival->left = pieces.size();
  for (const Piece& piece : pieces) {
    qp_.later(qp_.world().random().below(kMostPlacing), "data",
              [this, number = request.number, piece, answer, arrival, end] {
                const SendRequest* const one = find(number);
                if (one == nullptr) return;
                const std::span<const std::byte> bytes = std::span(answer->data).subspan(piece.offset, piece.bytes);
                arrival->is_well &= scatter(qp_, qp_.pd, one->sges, piece.offset, bytes);
                if (--arrival->left == 0) end();
              });
  }
}

void Requester::wait_for_receive(const Answer& answer) {
  SendRequest& request = *find(answer.number);
  const bool has_end = qp_.path.rnr_retry != kRetryForEver || qp_.nic.network().is(Mutant::kRnrCounted);
  if (has_end && rnr_retries_left_ == 0) {
    request.failure = IBV_WC_RNR_RETRY_EXC_ERR;
    return;
  }
  if (has_end) --rnr_retries_left_;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    if (&queue_[i] == &request) next_ = i;
  }
  waits_for_receive_ = true;
  progress_ = qp_.world().now();
  // The timer is the least that the requester waits.
  const Nanoseconds least = Nanoseconds{kRnrTimerUs[answer.rnr_timer & 31]} * 1000;
  qp_.world().tell("{} waits for a receive", describe(qp_));
  qp_.later(qp_.world().random().between(least, 2 * least), "receiver not ready", [this] {
    waits_for_receive_ = false;
    progress_ = qp_.world().now();
    pump_later();
  });
}

// --- time -------------------------------------------------------------------------------------------------------

void Requester::watch() {
  if (qp_.path.timeout == 0 || std::exchange(is_watched_, true)) return;
  // Nothing was under way before: its time begins now.
  if (next_ == 0) progress_ = qp_.world().now();
  // IBTA 9.9.2.1.1: a NIC may take up to four times the timeout.
  const Nanoseconds patience = qp_.world().random().between(ack_timeout(qp_), 4 * ack_timeout(qp_));
  const Nanoseconds due = std::max(progress_ + patience, qp_.world().now() + ack_timeout(qp_));
  qp_.later(due - qp_.world().now(), "timeout", [this] {
    is_watched_ = false;
    if (!awaits_answer()) return;
    if (waits_for_receive_ || qp_.world().now() < progress_ + ack_timeout(qp_)) return watch();
    time_out();
  });
}

void Requester::time_out() {
  const auto first = std::find_if(queue_.begin(), queue_.end(),
                                  [](const SendRequest& one) { return !one.is_done && !one.is_arriving; });
  if (retries_left_ == 0) {
    qp_.world().tell("{} gives up", describe(qp_));
    first->failure = IBV_WC_RETRY_EXC_ERR;
    return complete();
  }
  --retries_left_;
  progress_ = qp_.world().now();
  next_ = std::min(next_, static_cast<std::size_t>(first - queue_.begin()));
  pump_later();
  watch();
}

// --- completions ------------------------------------------------------------------------------------------------

void Requester::complete() {
  while (!queue_.empty() && queue_.front().is_done) {
    const SendRequest request = std::move(queue_.front());
    queue_.pop_front();
    next_ -= next_ == 0 ? 0 : 1;
    const bool is_signaled = qp_.options.signal_all || (request.wr.send_flags & IBV_SEND_SIGNALED) != 0;
    if (is_signaled) finish(request, IBV_WC_SUCCESS);
    if (qp_.now == IBV_QPS_ERR) return;  // The completion queue was full.
  }
  if (queue_.empty() || queue_.front().failure == IBV_WC_SUCCESS) return;
  // A failure completes whether it is signaled or not, after all that was posted before (IBTA 10.8.3.2).
  const SendRequest request = std::move(queue_.front());
  queue_.pop_front();
  finish(request, request.failure);
  qp_.enter_error(Status::kFlushed);
}

void Requester::finish(const SendRequest& request, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = request.wr.wr_id;
  wc.status = status;
  wc.opcode = completion_opcode(request.wr.opcode);
  wc.byte_len = static_cast<std::uint32_t>(request.length);
  wc.qp_num = qp_.qp_num;
  qp_.world().tell("{} completes {} {}: {}", describe(qp_), name_of(request.wr.opcode), wc.wr_id,
                   static_cast<int>(status));
  qp_.nic.push(*qp_.scq, {.wc = wc, .qp = &qp_, .is_send = true, .posted = request.posted}, false);
}

void Requester::flush() {
  if (std::exchange(is_flushing_, true)) return;
  qp_.later(qp_.world().random().below(kMostPlacing), "flush of sends", [this] {
    is_flushing_ = false;
    if (qp_.nic.network().is(Mutant::kFlushBackwards)) std::reverse(queue_.begin(), queue_.end());
    while (!queue_.empty()) {
      const SendRequest request = std::move(queue_.front());
      queue_.pop_front();
      finish(request, IBV_WC_WR_FLUSH_ERR);
    }
    next_ = 0;
  });
}

}  // namespace verbena::sim
