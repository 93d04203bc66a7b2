#include "responder.hpp"

#include "objects.hpp"
#include "sim_nic.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::sim {

namespace {

constexpr Nanoseconds kMostTurn = 150;
constexpr Nanoseconds kMostDelivery = 800;
constexpr std::size_t kMostAtomics = 64;

bool needs_receive(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

const ibv_pd* pd_of_receives(const SimQp& qp) noexcept { return qp.shared != nullptr ? qp.shared->pd : qp.pd; }

}  // namespace

// --- receives ---------------------------------------------------------------------------------------------------

bool Responder::is_full() const noexcept { return posted_ - retired_ >= qp_.options.max_recv_wr; }

void Responder::post(const ibv_recv_wr& wr) {
  ++posted_;
  receives_.push_back({wr.wr_id, {wr.sg_list, wr.sg_list + wr.num_sge}});
  qp_.world().note({qp_.qp_num, wr.wr_id});
  qp_.world().tell("{} posts receive {}", describe(qp_), wr.wr_id);
  if (qp_.now == IBV_QPS_ERR) flush();
}

void Responder::post_again(const Receive& receive) {
  retire();
  ++posted_;
  receives_.push_back(receive);
}

bool Responder::take_receive() {
  std::deque<Receive>& from = qp_.shared != nullptr ? qp_.shared->receives : receives_;
  if (from.empty()) return false;
  current_ = std::move(from.front());
  from.pop_front();
  return true;
}

void Responder::complete_receive(const Message& message) {
  ibv_wc wc{};
  wc.wr_id = current_->wr_id;
  wc.opcode = message.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc.byte_len = static_cast<std::uint32_t>(message.length);
  wc.qp_num = qp_.qp_num;
  if (message.opcode == IBV_WR_SEND_WITH_IMM || message.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = message.immediate;
  } else if (message.opcode == IBV_WR_SEND_WITH_INV) {
    wc.wc_flags = IBV_WC_WITH_INV;
    wc.invalidated_rkey = message.immediate;
  }
  Cqe entry{.wc = wc, .qp = &qp_, .receive = std::move(*current_)};
  current_.reset();
  if (qp_.shared != nullptr) --qp_.shared->unfinished;
  qp_.world().tell("{} completes receive {}", describe(qp_), wc.wr_id);
  qp_.nic.push(*qp_.rcq, entry, message.is_solicited);
}

void Responder::fail_receive(ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = current_->wr_id;
  wc.status = status;
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = qp_.qp_num;
  current_.reset();
  if (qp_.shared != nullptr) --qp_.shared->unfinished;
  qp_.world().tell("{} completes receive {}: {}", describe(qp_), wc.wr_id, static_cast<int>(status));
  qp_.nic.push(*qp_.rcq, {.wc = wc, .qp = &qp_}, true);
}

void Responder::reset() noexcept {
  receives_.clear();
  current_.reset();
  posted_ = retired_ = 0;
  inbox_.clear();
  places_.clear();
  atomics_.clear();
  reads_ = 0;
  is_busy_ = is_flushing_ = false;
}

void Responder::flush() {
  inbox_.clear();
  places_.clear();
  if (std::exchange(is_flushing_, true)) return;
  qp_.later(qp_.world().random().below(kMostDelivery), "flush of receives", [this] {
    is_flushing_ = false;
    if (qp_.nic.network().is(Mutant::kFlushBackwards)) std::reverse(receives_.begin(), receives_.end());
    // The one that a message had begun to fill is the oldest.
    if (current_) fail_receive(IBV_WC_WR_FLUSH_ERR);
    while (!receives_.empty()) {
      current_ = std::move(receives_.front());
      receives_.pop_front();
      fail_receive(IBV_WC_WR_FLUSH_ERR);
    }
  });
}

// --- messages in their order ------------------------------------------------------------------------------------

void Responder::on_message(Shared message) {
  if (qp_.is_reliable()) {
    // IBTA 9.7.4.1.2: what is older is repeated, and is answered again but not executed again; what is newer has lost
    // something before it, and is dropped until that comes.
    if (message->number < expected_) return answer_again(*message);
    if (message->number > expected_) return;
    ++expected_;
  }
  inbox_.push_back(std::move(message));
  next();
}

bool Responder::take_now(std::span<const std::byte> data) {
  if (is_busy_ || !inbox_.empty() || current_ || qp_.shared != nullptr || receives_.empty()) return false;
  const std::vector<ibv_sge>& places = receives_.front().sges;
  std::uint64_t room = 0;
  for (const ibv_sge& place : places) room += place.length;
  if (room < data.size() || !scatter(qp_, qp_.pd, places, 0, data) || !take_receive()) return false;
  Message message;
  message.length = data.size();
  complete_receive(message);
  return true;
}

void Responder::answer_again(const Message& message) {
  if (message.number >= answered_) return;  // Its answer is still to come.
  auto again = std::make_shared<Answer>();
  again->number = message.number;
  if (message.opcode == IBV_WR_RDMA_READ) {
    // A repeated READ is executed anew, and may bring newer bytes (IBTA 9.7.5.2.3).
    again->kind = Answer::Kind::kData;
    again->data.resize(message.length);
    if (message.length != 0) {
      if (check_access(message, IBV_ACCESS_REMOTE_READ) != IBV_WC_SUCCESS) return;
      std::memcpy(again->data.data(),
                  qp_.nic.keys().remote(qp_, message.address, message.rkey, message.length, IBV_ACCESS_REMOTE_READ),
                  message.length);
    }
  } else if (is_atomic(message.opcode)) {
    const auto at = atomics_.find(message.number);
    if (at == atomics_.end()) return;
    again->kind = Answer::Kind::kData;
    again->data.resize(sizeof at->second);
    std::memcpy(again->data.data(), &at->second, sizeof at->second);
  } else {
    again->number = answered_ - 1;
  }
  send_answer(qp_, again);
}

void Responder::next() {
  if (inbox_.empty() || std::exchange(is_busy_, true)) return;
  qp_.later(qp_.world().random().below(kMostTurn), "execute", [this] {
    const Shared message = std::move(inbox_.front());
    inbox_.pop_front();
    execute(message);
  });
}

void Responder::execute(const Shared& message) {
  // IBTA table 79: a SEND or WRITE may pass READs before it, READs and atomics do not pass each other.
  if (reads_ != 0 && is_read_or_atomic(message->opcode)) {
    inbox_.push_front(message);
    is_busy_ = false;
    return;  // The READ's end goes on with it.
  }
  qp_.world().note({qp_.qp_num, message->number});
  switch (message->opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return execute_write(message);
    case IBV_WR_RDMA_READ: return execute_read(message);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return execute_atomic(message);
    default: return execute_send(message);
  }
}

void Responder::in_pieces(std::uint64_t address, std::uint64_t length, std::function<bool(const Piece&)> deliver,
                          std::function<void()> end) {
  Random& random = qp_.world().random();
  const std::vector<Piece> pieces = cut_into_pieces(address, length, random);
  if (pieces.size() <= 1) {
    if (pieces.empty() || deliver(pieces.front())) end();
    return;
  }
  struct Delivery {
    std::size_t left;
    std::function<bool(const Piece&)> deliver;
    std::function<void()> end;
  };
  auto delivery = std::make_shared<Delivery>(Delivery{pieces.size(), std::move(deliver), std::move(end)});
  for (const Piece& piece : pieces) {
    qp_.later(random.below(kMostDelivery), "piece", [delivery, piece] {
      // After a piece that could not be delivered the queue pair is in error, or `end` never comes.
      if (delivery->left == 0) return;
      if (!delivery->deliver(piece)) {
        delivery->left = 0;
        return;
      }
      if (--delivery->left == 0) delivery->end();
    });
  }
}

void Responder::execute_send(const Shared& message) {
  if (message->opcode == IBV_WR_SEND_WITH_INV && !qp_.nic.keys().may_invalidate(qp_, message->immediate)) {
    return refuse(message, IBV_WC_REM_ACCESS_ERR, Status::kRemoteAccess);
  }
  const std::deque<Receive>& from = qp_.shared != nullptr ? qp_.shared->receives : receives_;
  if (from.empty()) return not_ready(message);
  const std::uint64_t room = length_of(from.front().sges);
  // IBTA 9.8.3.1: an unreliable connection drops what is too long, and the receive stays for the next.
  if (!qp_.is_reliable() && message->length > room) return done(*message);
  (void)take_receive();
  if (message->length > room) return fail_receive_of(message, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
  // Nothing is put anywhere by an empty message, so no key is looked at.
  if (message->length != 0 && !keys_hold(qp_, pd_of_receives(qp_), current_->sges, IBV_ACCESS_LOCAL_WRITE)) {
    return fail_receive_of(message, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
  }
  const auto deliver = [this, message](const Piece& piece) {
    const auto bytes = std::span(message->data).subspan(piece.offset, piece.bytes);
    if (scatter(qp_, pd_of_receives(qp_), current_->sges, piece.offset, bytes)) return true;
    fail_receive_of(message, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
    return false;
  };
  in_pieces(0, message->length, deliver, [this, message] { arrived(message); });
}

/// All bytes of a SEND are in their place.
void Responder::arrived(const Shared& message) {
  if (message->opcode == IBV_WR_SEND_WITH_INV) {
    if (!qp_.nic.keys().may_invalidate(qp_, message->immediate)) {
      return fail_receive_of(message, IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_ACCESS_ERR);
    }
    qp_.nic.keys().invalidate(KeyTable::index_of(message->immediate));
  }
  complete_receive(*message);
  done(*message);
}

ibv_wc_status Responder::check_access(const Message& message, std::uint32_t needed) const noexcept {
  // IBTA C9-88: of an empty access neither key nor address is looked at.
  if (message.length == 0) return IBV_WC_SUCCESS;
  // IBTA 9.7.4.1.4: an operation that the queue pair does not accept is an invalid request.
  if ((qp_.path.access & needed) != needed) return IBV_WC_REM_INV_REQ_ERR;
  const bool is_allowed = qp_.nic.keys().remote(qp_, message.address, message.rkey, message.length, needed) != nullptr;
  return is_allowed ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}

void Responder::execute_write(const Shared& message) {
  const ibv_wc_status status = check_access(*message, IBV_ACCESS_REMOTE_WRITE);
  if (status != IBV_WC_SUCCESS) return refuse(message, status, Status::kRemoteAccess);
  const auto deliver = [this, message](const Piece& piece) {
    // Looked up for each piece: the region may go in the middle, and is then touched no more.
    std::byte* const to = qp_.nic.keys().remote(qp_, message->address + piece.offset, message->rkey, piece.bytes,
                                                IBV_ACCESS_REMOTE_WRITE);
    if (to == nullptr) {
      refuse(message, IBV_WC_REM_ACCESS_ERR, Status::kRemoteAccess);
      return false;
    }
    std::memcpy(to, message->data.data() + piece.offset, piece.bytes);
    return true;
  };
  if (qp_.nic.network().is(Mutant::kWriteBehind) && !needs_receive(message->opcode)) {
    in_pieces(message->address, message->length, deliver, [] {});
    return done(*message);
  }
  in_pieces(message->address, message->length, deliver, [this, message] { written(message); });
}

/// All bytes of a WRITE are in their place. Its receive is taken last, so data may be there before the receiver is
/// ready (IBTA 9.7.5.2.8: the whole message is repeated).
void Responder::written(const Shared& message) {
  if (message->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    if (!take_receive()) return not_ready(message);
    complete_receive(*message);
  }
  done(*message);
}

void Responder::execute_read(const Shared& message) {
  const ibv_wc_status status = check_access(*message, IBV_ACCESS_REMOTE_READ);
  if (status != IBV_WC_SUCCESS) return refuse(message, status, Status::kRemoteAccess);
  auto place = std::make_shared<Place>();
  place->answer = std::make_shared<Answer>();
  place->answer->kind = Answer::Kind::kData;
  place->answer->number = message->number;
  place->answer->data.resize(message->length);
  places_.push_back(place);
  ++reads_;
  const auto fetch = [this, message, place](const Piece& piece) {
    const std::byte* const from =
        qp_.nic.keys().remote(qp_, message->address + piece.offset, message->rkey, piece.bytes, IBV_ACCESS_REMOTE_READ);
    if (from == nullptr) {
      --reads_;
      std::erase(places_, place);
      refuse(message, IBV_WC_REM_ACCESS_ERR, Status::kRemoteAccess);
      return false;
    }
    std::memcpy(place->answer->data.data() + piece.offset, from, piece.bytes);
    return true;
  };
  // What comes next need not wait for the bytes.
  const bool is_passed = qp_.world().random().one_in(2);
  if (is_passed) is_busy_ = false;
  in_pieces(message->address, message->length, fetch, [this, place, is_passed] {
    --reads_;
    place->is_ready = true;
    if (!is_passed) is_busy_ = false;
    send_ready_answers();
    next();
  });
  if (is_passed) next();
}

void Responder::execute_atomic(const Shared& message) {
  std::uint64_t old = 0;
  // IBTA 9.4.5: the address is a multiple of eight, or the request is invalid.
  if (message->address % sizeof old != 0) return refuse(message, IBV_WC_REM_INV_REQ_ERR, Status::kRemoteInvalid);
  const ibv_wc_status status = check_access(*message, IBV_ACCESS_REMOTE_ATOMIC);
  if (status != IBV_WC_SUCCESS) return refuse(message, status, Status::kRemoteAccess);
  std::byte* const at =
      qp_.nic.keys().remote(qp_, message->address, message->rkey, sizeof old, IBV_ACCESS_REMOTE_ATOMIC);
  std::memcpy(&old, at, sizeof old);
  std::uint64_t changed = old + message->operand;
  if (message->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) changed = old == message->operand ? message->swap : old;
  std::memcpy(at, &changed, sizeof changed);
  atomics_[message->number] = old;
  if (atomics_.size() > kMostAtomics) atomics_.erase(atomics_.begin());
  auto place = std::make_shared<Place>();
  place->answer = std::make_shared<Answer>();
  place->answer->kind = Answer::Kind::kData;
  place->answer->number = message->number;
  place->answer->data.resize(sizeof old);
  std::memcpy(place->answer->data.data(), &old, sizeof old);
  place->is_ready = true;
  places_.push_back(place);
  is_busy_ = false;
  send_ready_answers();
  next();
}

// --- answers ----------------------------------------------------------------------------------------------------

void Responder::done(const Message& message) {
  is_busy_ = false;
  if (qp_.is_reliable()) answer(message, Answer::Kind::kDone);
  next();
}

void Responder::answer(const Message& message, Answer::Kind kind) {
  auto place = std::make_shared<Place>();
  place->answer = std::make_shared<Answer>();
  place->answer->kind = kind;
  place->answer->number = message.number;
  place->answer->rnr_timer = qp_.path.min_rnr_timer;
  place->is_ready = true;
  places_.push_back(std::move(place));
  send_ready_answers();
}

void Responder::send_ready_answers() {
  while (!places_.empty() && places_.front()->is_ready) {
    const std::shared_ptr<const Answer> answer = places_.front()->answer;
    places_.pop_front();
    if (answer->kind != Answer::Kind::kNotReady) answered_ = answer->number + 1;
    // The one behind it tells of it too.
    const bool is_told = answer->kind == Answer::Kind::kDone && !places_.empty() && places_.front()->is_ready;
    if (!is_told) send_answer(qp_, answer);
  }
}

void Responder::not_ready(const Shared& message) {
  if (!qp_.is_reliable()) return done(*message);  // IBTA 9.8.3.1: dropped.
  qp_.world().tell("{} has no receive for message {}", describe(qp_), message->number);
  // What has come behind it is out of order now, and comes again after it (IBTA 9.7.5.2.8).
  inbox_.clear();
  expected_ = message->number;
  is_busy_ = false;
  answer(*message, Answer::Kind::kNotReady);
}

void Responder::refuse(const Shared& message, ibv_wc_status status, Status why) {
  if (!qp_.is_reliable()) return done(*message);
  if (reads_ != 0) {
    // The answers of READs before it come first: in error they would not come any more.
    inbox_.push_front(message);
    is_busy_ = false;
    return;
  }
  qp_.world().tell("{} refuses message {}: {}", describe(qp_), message->number, static_cast<int>(status));
  auto refusal = std::make_shared<Answer>();
  refusal->kind = Answer::Kind::kRefused;
  refusal->number = message->number;
  refusal->status = status;
  send_answer(qp_, refusal);
  qp_.enter_error(why);  // IBTA 9.9.3: class C responder faults.
}

void Responder::fail_receive_of(const Shared& message, ibv_wc_status here, ibv_wc_status there) {
  if (qp_.is_reliable() && reads_ != 0) {
    // As in `refuse`; the receive is the next one's again until then.
    (qp_.shared != nullptr ? qp_.shared->receives : receives_).push_front(std::move(*current_));
    current_.reset();
    inbox_.push_front(message);
    is_busy_ = false;
    return;
  }
  fail_receive(here);
  if (qp_.is_reliable()) return refuse(message, there, Status::kLocalAccess);
  qp_.enter_error(Status::kLocalAccess);
}

}  // namespace verbena::sim
