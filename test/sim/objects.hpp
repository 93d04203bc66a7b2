// The private objects of the simulated NIC.
#pragma once

#include "requester.hpp"
#include "responder.hpp"

#include "nic/nic.hpp"

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

namespace verbena::sim {

class SimNic;
struct SimCq;

struct SimPd : ibv_pd {
  std::uint32_t users = 0;
};
struct SimMr : ibv_mr {
  std::uint64_t iova = 0;
  std::uint32_t access = 0;
};
struct SimMw : ibv_mw {};

struct SimChannel : ibv_comp_channel {
  bool is_woken = false;
  std::vector<SimCq*> cqs;
};

/// One completion, with what a poll of it gives back to its queue.
struct Cqe {
  ibv_wc wc{};
  SimQp* qp = nullptr;
  bool is_send = false;
  std::uint64_t posted = 0;  ///< Of a send: so many were posted up to it, and are retired with it.
  Receive receive;           ///< Of a receive.
};

struct SimCq : ibv_cq {
  enum class Armed : std::uint8_t { kNo, kSolicited, kAny };
  SimNic* nic = nullptr;
  std::deque<Cqe> entries;
  Armed armed = Armed::kNo;
  bool is_due = false;      ///< It has had its event, which `wait` has not returned yet.
  bool is_overrun = false;  ///< It takes no more completions (IBTA 10.10.4.2: an affiliated error of its queue pairs).
  std::uint32_t users = 0;
};

struct SimSrq : ibv_srq {
  SimNic* nic = nullptr;
  std::deque<Receive> receives;
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
  std::uint32_t unfinished = 0;  ///< Posted and not complete.
  std::uint32_t users = 0;
};

/// What modify_qp has said of the way to the peer.
struct Path {
  ibv_gid gid{};
  std::uint32_t qp_num = 0;
  std::uint32_t access = 0;
  std::uint8_t min_rnr_timer = 0;
  std::uint8_t timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry = 0;
  std::uint8_t max_rd_atomic = 0;
  Nanoseconds last_arrival = 0;  ///< Of this queue pair's packets at the peer: none overtakes another.
};

struct SimQp : ibv_qp, std::enable_shared_from_this<SimQp> {
  SimQp(SimNic& owner, const nic::QpOptions& wanted)
      : nic(owner), options(wanted), requester(*this), responder(*this) {}

  SimNic& nic;
  nic::QpOptions options;
  SimCq* scq = nullptr;
  SimCq* rcq = nullptr;
  SimSrq* shared = nullptr;
  ibv_qp_state now = IBV_QPS_RESET;
  Status failure = Status::kOk;
  /// Changes when the queue pair is reset or fails: what was under way before happens no more.
  std::uint64_t epoch = 1;
  Path path;
  Requester requester;
  Responder responder;
  std::map<std::uint32_t, std::uint32_t> imports;  ///< How often, by key.

  [[nodiscard]] World& world() const noexcept;
  [[nodiscard]] bool is_reliable() const noexcept { return qp_type == IBV_QPT_RC; }
  /// In a state that answers to requests.
  [[nodiscard]] bool hears() const noexcept { return now == IBV_QPS_RTR || now == IBV_QPS_RTS; }
  /// Makes `event` happen, if the queue pair is then still in the epoch that it is in now.
  void later(Nanoseconds delay, std::string_view what, std::function<void()> event);
  /// IBTA 10.3.1: everything that is posted is flushed, in order, and no request of the peer is answered any more.
  void enter_error(Status why);
  void leave_epoch() noexcept { ++epoch; }
};

/// As a queue pair's part of a story.
[[nodiscard]] std::string describe(const SimQp& qp);

}  // namespace verbena::sim
