#include "stage.hpp"

#include "wire.hpp"

#include "pattern.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace verbena::sim {

using nic::Cq;
using nic::Mr;
using nic::Mw;
using nic::Nic;
using nic::Pd;
using nic::Qp;
using nic::QpOptions;
using nic::Srq;

namespace {

constexpr std::uint32_t kDepth = 256;
constexpr std::uint32_t kCqe = 2048;
constexpr std::uint8_t kRnrTimer = 12;  // 0.64 ms
constexpr std::uint8_t kTimeout = 8;    // 1 ms
constexpr std::uint8_t kRetryCount = 1;
constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

void to_init(Nic& nic, ibv_qp* qp, std::uint32_t access) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.qp_access_flags = access;
  EXPECT_OK(nic.modify_qp(qp, attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, soon()));
}

void to_rts(Nic& nic, ibv_qp* qp, const nic::QpAddress& peer, std::uint8_t rnr_retry) {
  const bool is_reliable = qp->qp_type == IBV_QPT_RC;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer.qp_num;
  attr.max_dest_rd_atomic = static_cast<std::uint8_t>(std::min(8U, nic.limits().max_rd_atomic));
  attr.min_rnr_timer = kRnrTimer;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.grh.dgid = peer.gid;
  attr.ah_attr.grh.hop_limit = 64;
  constexpr int kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  EXPECT_OK(
      nic.modify_qp(qp, attr, kRtr | (is_reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0), soon()));
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = kTimeout;
  attr.retry_cnt = kRetryCount;
  attr.rnr_retry = rnr_retry;
  attr.max_rd_atomic = attr.max_dest_rd_atomic;
  constexpr int kReliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  EXPECT_OK(nic.modify_qp(qp, attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (is_reliable ? kReliable : 0), soon()));
}

template <class Object>
auto made(Nic& nic, const Result<Object*>& result) {
  EXPECT_OK(result);
  return result ? nic::Handle<Object>(nic, *result) : nic::Handle<Object>();
}

}  // namespace

// --- objects ----------------------------------------------------------------------------------------------------

Stage::Stage(Nic& first, Nic& second, const Program& program) : program_(program) {
  for (const Phase& phase : program.phases) {
    for (const Operation& operation : phase.operations) operations_[operation.wr_id] = &operation;
  }
  set_up(sides_[0], first);
  set_up(sides_[1], second);
  for (std::uint32_t pair = 0; pair < program.pairs.size(); ++pair) {
    for (std::uint32_t side = 0; side < 2; ++side) add_end(sides_[side], side, pair);
  }
}

void Stage::set_up(Side& side, Nic& nic) {
  side.nic = &nic;
  auto arena = host::Arena::create({.size_bytes = program_.pairs.size() * kShare,
                                    .share = host::Share::kReadWrite,
                                    .prefault_threads = 1,
                                    .name = "differential"});
  ASSERT_OK(arena);
  side.arena = std::move(*arena);
  test::fill(side.arena.bytes(), &side == sides_.data() ? 1 : 2);
  const auto id = nic.attach(side.arena, {.to = nic::Grant::To::kAnyPeer});
  ASSERT_OK(id);
  side.memory_id = *id;
  side.pd = made(nic, nic.alloc_pd());
  side.other_pd = made(nic, nic.alloc_pd());
  const auto reg = [&](const Pd& pd, int access) {
    const auto address = reinterpret_cast<std::uint64_t>(side.arena.data());
    return made(nic, nic.reg_mr(pd.get(), side.arena.data(), side.arena.size(), address, access));
  };
  side.whole = reg(side.pd, kAllAccess);
  side.foreign = reg(side.other_pd, kAllAccess);
  side.read_only = reg(side.pd, IBV_ACCESS_REMOTE_READ);
  side.local_read_only = reg(side.pd, 0);
  side.sends = made(nic, nic.create_cq(kCqe, nullptr));
  side.receives = made(nic, nic.create_cq(kCqe, nullptr));
  side.shared = made(nic, nic.create_srq(side.pd.get(), kDepth, 4));
}

void Stage::add_end(Side& side, std::uint32_t number, std::uint32_t pair) {
  const PairPlan& plan = program_.pairs[pair];
  QpOptions options{.send_cq = side.sends.get(),
                    .recv_cq = side.receives.get(),
                    .srq = plan.is_shared && number == 1 ? side.shared.get() : nullptr,
                    .type = plan.type,
                    .max_send_wr = kDepth,
                    .max_recv_wr = kDepth,
                    .signal_all = plan.signal_all};
  End end;
  end.qp = made(*side.nic, side.nic->create_qp(side.pd.get(), options));
  end.window = made(*side.nic, side.nic->alloc_mw(side.pd.get()));
  ASSERT_TRUE(end.qp && end.window);
  end.first_key = end.window->rkey;
  pair_of_[{number, end.qp->qp_num}] = pair;
  to_init(*side.nic, end.qp.get(), plan.access[number]);
  side.ends.push_back(std::move(end));
}

void Stage::connect() {
  for (std::uint32_t pair = 0; pair < program_.pairs.size(); ++pair) {
    std::array<nic::QpAddress, 2> addresses;
    for (std::size_t i = 0; i < 2; ++i) addresses[i] = sides_[i].nic->address_of(sides_[i].ends[pair].qp.get());
    for (std::size_t i = 0; i < 2; ++i) {
      to_rts(*sides_[i].nic, sides_[i].ends[pair].qp.get(), addresses[1 - i], program_.pairs[pair].rnr_retry);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const Side& peer = sides_[1 - i];
      // Some of them the NIC may refuse already here.
      for (const Mr* region : {&peer.whole, &peer.read_only, &peer.foreign}) {
        (void)sides_[i].nic->import_window(sides_[i].ends[pair].qp.get(), peer.nic->window_of(region->get()), soon());
      }
    }
  }
}

void Stage::to_error() {
  for (Side& side : sides_) {
    for (const End& end : side.ends) {
      ibv_qp_attr attr{};
      attr.qp_state = IBV_QPS_ERR;
      EXPECT_OK(side.nic->modify_qp(end.qp.get(), attr, IBV_QP_STATE, soon()));
    }
  }
}

void Stage::close(Side& side) {
  for (End& end : side.ends) end.qp.reset();
  side.ends.clear();
  side.shared.reset();
  side.sends.reset();
  side.receives.reset();
  for (Mr* region : {&side.whole, &side.foreign, &side.read_only, &side.local_read_only}) region->reset();
  side.pd.reset();
  side.other_pd.reset();
  EXPECT_OK(side.nic->detach(side.memory_id));
}

Outcome Stage::run(const Settle& settle) {
  connect();
  for (std::size_t i = 0; i < program_.phases.size(); ++i) {
    for (const PostedReceive& receive : program_.phases[i].receives) post(receive);
    for (const Operation& operation : program_.phases[i].operations) post(operation);
    settle(*this, i);
    outcome_.counts.push_back(counts());
  }
  for (std::uint32_t side = 0; side < 2; ++side) {
    for (std::uint32_t pair = 0; pair < program_.pairs.size(); ++pair) {
      const ibv_qp_state state = sides_[side].nic->qp_state(sides_[side].ends[pair].qp.get());
      outcome_.told[{side, pair, true}].push_back(state == IBV_QPS_RTS ? "ends in RTS" : "ends in another state");
    }
  }
  to_error();
  settle(*this, program_.phases.size());
  outcome_.counts.push_back(counts());
  for (std::size_t i = 0; i < 2; ++i) {
    const std::span<const std::byte> bytes = sides_[i].arena.bytes();
    outcome_.memory[i].assign(bytes.begin(), bytes.end());
  }
  for (Side& side : sides_) close(side);
  return std::move(outcome_);
}

// --- requests ---------------------------------------------------------------------------------------------------

std::vector<ibv_sge> Stage::segments(const Side& side, const std::vector<Range>& local, LocalKey key) const {
  std::uint32_t lkey = side.whole->lkey;
  if (key == LocalKey::kUnknown) lkey = ~lkey;
  if (key == LocalKey::kOtherDomain) lkey = side.foreign->lkey;
  if (key == LocalKey::kReadOnly) lkey = side.local_read_only->lkey;
  std::vector<ibv_sge> sges;
  for (const Range& range : local) {
    sges.push_back({reinterpret_cast<std::uint64_t>(side.arena.data() + range.offset),
                    static_cast<std::uint32_t>(range.length), lkey});
  }
  return sges;
}

void Stage::post(const PostedReceive& receive) {
  Side& side = sides_[receive.side];
  std::vector<ibv_sge> sges = segments(side, receive.local, receive.local_key);
  ibv_recv_wr wr{};
  wr.wr_id = receive.wr_id;
  wr.sg_list = sges.data();
  wr.num_sge = static_cast<int>(sges.size());
  ibv_recv_wr* bad = nullptr;
  const bool is_shared = program_.pairs[receive.pair].is_shared && receive.side == 1;
  const int refused = is_shared ? ibv_post_srq_recv(side.shared.get(), &wr, &bad)
                                : ibv_post_recv(side.ends[receive.pair].qp.get(), &wr, &bad);
  EXPECT_EQ(refused, 0);
}

std::uint32_t Stage::window_key(const End& end, std::uint32_t variant) noexcept {
  return (end.first_key & ~0xFFU) | ((end.first_key + variant) & 0xFF);
}

std::uint32_t Stage::remote_key(const Operation& operation) const {
  const Side& peer = sides_[1 - operation.side];
  switch (operation.remote_key) {
    case RemoteKey::kGood: return peer.whole->rkey;
    case RemoteKey::kUnknown: return ~peer.whole->rkey;
    case RemoteKey::kOtherDomain: return peer.foreign->rkey;
    case RemoteKey::kReadOnly: return peer.read_only->rkey;
    case RemoteKey::kLocal: return peer.whole->lkey;
    case RemoteKey::kWindow: return window_key(peer.ends[operation.pair], operation.variant);
  }
  return 0;
}

ibv_mw_bind_info Stage::bind_info(const Operation& operation) const {
  const Side& side = sides_[operation.side];
  return {side.whole.get(), reinterpret_cast<std::uint64_t>(side.arena.data() + operation.bound.offset),
          operation.bound.length, operation.access};
}

void Stage::fill_in(const Operation& operation, ibv_send_wr& wr) const {
  const End& own = sides_[operation.side].ends[operation.pair];
  const Side& peer = sides_[1 - operation.side];
  const std::uint64_t remote = reinterpret_cast<std::uint64_t>(peer.arena.data()) + operation.remote;
  wr.wr_id = operation.wr_id;
  wr.opcode = operation.opcode;
  wr.send_flags = operation.flags;
  wr.imm_data = operation.immediate;
  if (operation.opcode == IBV_WR_BIND_MW) {
    wr.bind_mw = {own.window.get(), window_key(own, operation.variant), bind_info(operation)};
  } else if (operation.opcode == IBV_WR_LOCAL_INV) {
    wr.invalidate_rkey = window_key(own, operation.variant);
  } else if (operation.opcode == IBV_WR_SEND_WITH_INV) {
    wr.invalidate_rkey = window_key(peer.ends[operation.pair], operation.variant);
  } else if (is_atomic(operation.opcode)) {
    wr.wr.atomic = {remote, operation.operand, operation.swap, remote_key(operation)};
  } else {
    wr.wr.rdma = {remote, remote_key(operation)};
  }
}

void Stage::post(const Operation& operation) {
  const Side& side = sides_[operation.side];
  std::vector<ibv_sge> sges = segments(side, operation.local, operation.local_key);
  // Inline bytes come from memory that no key names, and that is another's as soon as they are posted.
  std::vector<std::byte> inlined;
  if ((operation.flags & IBV_SEND_INLINE) != 0) {
    for (const ibv_sge& sge : sges) {
      const auto* from = reinterpret_cast<const std::byte*>(sge.addr);
      inlined.insert(inlined.end(), from, from + sge.length);
    }
    sges = {{reinterpret_cast<std::uint64_t>(inlined.data()), static_cast<std::uint32_t>(inlined.size()), 0}};
    if (inlined.empty()) sges.clear();
  }
  ibv_send_wr wr{};
  fill_in(operation, wr);
  wr.sg_list = sges.data();
  wr.num_sge = static_cast<int>(sges.size());
  ibv_send_wr* bad = nullptr;
  const int refused = ibv_post_send(side.ends[operation.pair].qp.get(), &wr, &bad);
  std::fill(inlined.begin(), inlined.end(), std::byte{0xEE});
  if (refused != 0) {
    outcome_.told[{operation.side, operation.pair, true}].push_back(
        fmt::format("{} {} is not posted: {}", name_of(operation.opcode), operation.wr_id, refused));
  }
}

// --- completions ------------------------------------------------------------------------------------------------

std::map<QueueName, std::size_t> Stage::counts() const {
  std::map<QueueName, std::size_t> counts;
  for (const auto& [name, told] : outcome_.told) counts[name] = told.size();
  return counts;
}

bool Stage::collect() {
  bool any = false;
  for (std::uint32_t side = 0; side < 2; ++side) {
    for (const bool is_send : {true, false}) {
      ibv_wc completions[16];
      const int count = ibv_poll_cq((is_send ? sides_[side].sends : sides_[side].receives).get(), 16, completions);
      EXPECT_GE(count, 0);
      for (int i = 0; i < count; ++i) take(side, is_send, completions[i]);
      any |= count > 0;
    }
  }
  return any;
}

void Stage::take(std::uint32_t side, bool is_send, const ibv_wc& wc) {
  const auto pair = pair_of_.find({side, wc.qp_num});
  ASSERT_NE(pair, pair_of_.end());
  if (wc.status != IBV_WC_SUCCESS) outcome_.failed.push_back(wc.wr_id);
  std::string told = fmt::format("{}: {}", wc.wr_id, ibv_wc_status_str(wc.status));
  if (!is_send) {
    take_receive(side, pair->second, wc, told);
  } else {
    const auto operation = operations_.find(wc.wr_id);
    ASSERT_NE(operation, operations_.end());
    take_send(*operation->second, wc, told);
  }
  outcome_.told[{side, pair->second, is_send}].push_back(std::move(told));
}

void Stage::take_send(const Operation& operation, const ibv_wc& wc, std::string& told) {
  const bool is_refused = wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_INV_REQ_ERR;
  if (is_refused) outcome_.refused.push_back(wc.wr_id);
  // For an operation that the queue pair does not accept, the specification has an invalid request, and devices, and
  // the soft NIC with them, an access error.
  std::uint32_t needed = 0;
  if (is_write(operation.opcode)) needed = IBV_ACCESS_REMOTE_WRITE;
  if (operation.opcode == IBV_WR_RDMA_READ) needed = IBV_ACCESS_REMOTE_READ;
  if (is_atomic(operation.opcode)) needed = IBV_ACCESS_REMOTE_ATOMIC;
  const std::uint32_t access = program_.pairs[operation.pair].access[1 - operation.side];
  if (is_refused && (access & needed) != needed) told = fmt::format("{}: not accepted", wc.wr_id);
  // Only wr_id, status and qp_num are defined of a failure (ibv_poll_cq(3)).
  if (wc.status != IBV_WC_SUCCESS) return;
  told += fmt::format(", opcode {}", static_cast<int>(wc.opcode));
  if (is_read_or_atomic(operation.opcode)) told += fmt::format(", {} bytes", wc.byte_len);
  if (operation.opcode != IBV_WR_BIND_MW) return;
  const End& own = sides_[operation.side].ends[operation.pair];
  const std::uint32_t key = window_key(own, operation.variant);
  const Side& peer = sides_[1 - operation.side];
  // Invalidated since, perhaps.
  (void)peer.nic->import_window(peer.ends[operation.pair].qp.get(),
                                sides_[operation.side].nic->window_of(key, bind_info(operation)), soon());
}

void Stage::take_receive(std::uint32_t side, std::uint32_t pair, const ibv_wc& wc, std::string& told) {
  // A refused WRITE with immediate, or SEND with invalidation, may or may not have taken its receive, which then has a
  // status of its own instead of being flushed.
  if (wc.status == IBV_WC_WR_FLUSH_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR)
    told = fmt::format("{}: flushed", wc.wr_id);
  if (wc.status != IBV_WC_SUCCESS) return;
  told += fmt::format(", opcode {}, {} bytes", static_cast<int>(wc.opcode), wc.byte_len);
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) told += fmt::format(", immediate {}", wc.imm_data);
  if ((wc.wc_flags & IBV_WC_WITH_INV) == 0) return;
  const std::uint32_t first = sides_[side].ends[pair].first_key;
  told += fmt::format(", invalidates variant {}", (wc.invalidated_rkey - first) & 0xFF);
}

std::vector<std::pair<std::uint32_t, Range>> open_ranges(const Program& program, const Outcome& outcome) {
  const auto contains = [](const std::vector<std::uint64_t>& ids, std::uint64_t id) {
    return std::ranges::find(ids, id) != ids.end();
  };
  std::vector<std::pair<std::uint32_t, Range>> open;
  for (const Phase& phase : program.phases) {
    for (const PostedReceive& receive : phase.receives) {
      if (!contains(outcome.failed, receive.wr_id)) continue;
      for (const Range& range : receive.local) open.emplace_back(receive.side, range);
    }
    for (const Operation& operation : phase.operations) {
      // What the responder refuses has changed nothing; what is flushed, or has run out of retries, may have.
      if (!contains(outcome.failed, operation.wr_id) || contains(outcome.refused, operation.wr_id)) continue;
      std::size_t length = 0;
      for (const Range& range : operation.local) {
        length += range.length;
        if (is_read_or_atomic(operation.opcode)) open.emplace_back(operation.side, range);
      }
      if (is_write(operation.opcode) || is_atomic(operation.opcode)) {
        open.emplace_back(1 - operation.side, Range{operation.remote, length});
      }
    }
  }
  return open;
}

}  // namespace verbena::sim
