// The conformance suite's fixture: a connected pair of RC queue pairs over any NIC.
//
// Tests ask only what the verbs specification promises, unless they are in a fixture that is instantiated for the soft
// NIC alone. Waiting polls the completion queues of both sides: a NIC in user space may make progress only there.
#pragma once

#include "chaos.hpp"
#include "host/arena.hpp"
#include "nic/nic.hpp"
#include "pattern.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::nic::conformance {

using namespace std::chrono_literals;

/// Where the two queue pairs live.
enum class Layout : std::uint8_t { kTwoNics, kOneNic };

/// One NIC under test.
struct Case {
  const char* nic = "";
  Layout layout = Layout::kTwoNics;
  Result<std::unique_ptr<Nic>> (*open)() = nullptr;
  std::uint8_t sgid_index = 0;
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.nic; }
};

/// Every NIC, in both layouts: the soft NIC, the simulated one, and the RDMA device that the environment variable
/// VERBENA_NIC names.
[[nodiscard]] std::vector<Case> every_case();
/// Every NIC, each side its own.
[[nodiscard]] std::vector<Case> two_nic_cases();
/// The soft NIC, for what it promises beyond verbs; and with each side its own.
[[nodiscard]] std::vector<Case> soft_cases();
[[nodiscard]] std::vector<Case> two_soft_nic_cases();
[[nodiscard]] std::string name_of(const testing::TestParamInfo<Case>& info);

/// Long enough for any machine: only a test that fails waits as long.
[[nodiscard]] Deadline soon() noexcept;

inline constexpr std::size_t kArenaBytes = std::size_t{4} << 20;
inline constexpr std::size_t kTarget = std::size_t{2} << 20;  ///< Where most tests let something arrive.
inline constexpr std::byte kCanary{0xA5};                     ///< In bytes that must not change.
inline constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr int kRemoteAccess = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// How one side and its queue pair are made and connected.
struct SideOptions {
  ibv_qp_type type = IBV_QPT_RC;
  std::uint32_t send_depth = 64;
  std::uint32_t recv_depth = 64;
  std::uint32_t cqe = 256;
  std::uint32_t max_sge = 4;
  std::uint32_t max_inline = 64;
  bool signal_all = false;
  int region_access = kAllAccess;
  int qp_access = kRemoteAccess;
  std::uint8_t timeout = 12;  ///< 4.096 us * 2^12 = 17 ms
  std::uint8_t retry_count = 3;
  std::uint8_t rnr_retry = 7;      ///< For ever.
  std::uint8_t min_rnr_timer = 1;  ///< 10 us
  std::size_t arena_bytes = kArenaBytes;
};

/// One side: a NIC (its own or the other side's), memory, queues and a queue pair, destroyed in the reverse order.
struct Side {
  SideOptions options;
  Nic* nic = nullptr;
  host::Arena arena;
  std::uint64_t memory_id = 0;
  bool attached = false;
  Pd pd;
  Mr mr;  ///< The whole arena.
  Channel channel;
  Cq send_cq;
  Cq recv_cq;
  QpOptions qp_options;
  Qp qp;
  std::deque<ibv_wc> sent;      ///< Polled from send_cq, not yet looked at.
  std::deque<ibv_wc> received;  ///< Polled from recv_cq, not yet looked at.

  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return arena.data() + offset; }
  [[nodiscard]] std::uint64_t address(std::size_t offset) const noexcept {
    return reinterpret_cast<std::uint64_t>(at(offset));
  }
  [[nodiscard]] std::span<std::byte> bytes(std::size_t offset, std::size_t length) const noexcept {
    return arena.bytes().subspan(offset, length);
  }
  [[nodiscard]] ibv_sge sge(std::size_t offset, std::size_t length) const noexcept {
    return {address(offset), static_cast<std::uint32_t>(length), mr->lkey};
  }
  [[nodiscard]] std::uint32_t rkey() const noexcept { return mr->rkey; }
  [[nodiscard]] std::uint64_t& word(std::size_t offset) const noexcept {
    return *reinterpret_cast<std::uint64_t*>(at(offset));
  }
  [[nodiscard]] ibv_qp_state state() const noexcept { return nic->qp_state(qp.get()); }

  /// Moves completions that are there to `sent` and `received`.
  void poll();
  /// As the engine waits, until something of the send queue is complete: arms, polls once more, sleeps, polls.
  void sleep_until_sent();
  /// Posts one receive, without its empty segments; 0 or the errno of ibv_post_recv.
  int post_recv(std::uint64_t wr_id, std::initializer_list<ibv_sge> sges) const;
  int post_recv(std::uint64_t wr_id, const ibv_sge& sge) const { return post_recv(wr_id, {sge}); }
  /// Registers part of the arena besides `mr`.
  [[nodiscard]] Mr reg(std::size_t offset, std::size_t length, int access) const;
  [[nodiscard]] Mr reg(const Pd& other_pd, std::size_t offset, std::size_t length, int access) const;
  /// Destroys everything, in order.
  void close();
};

/// A send work request with its own segments.
class Request {
 public:
  Request(ibv_wr_opcode opcode, std::uint64_t wr_id) noexcept {
    wr_.opcode = opcode;
    wr_.wr_id = wr_id;
    wr_.send_flags = IBV_SEND_SIGNALED;
  }
  /// Empty segments are left out: a length of 0 is 2^31 to some devices.
  Request& gather(const ibv_sge& sge) {
    if (sge.length != 0) sges_.push_back(sge);
    return *this;
  }
  Request& remote(std::uint64_t address, std::uint32_t rkey) noexcept {
    wr_.wr.rdma = {address, rkey};
    return *this;
  }
  Request& remote(const Side& side, std::size_t offset) noexcept { return remote(side.address(offset), side.rkey()); }
  /// For compare-and-swap: (expected, desired). For fetch-and-add: (amount).
  Request& atomic(std::uint64_t address, std::uint32_t rkey, std::uint64_t compare_add,
                  std::uint64_t swap = 0) noexcept {
    wr_.wr.atomic.remote_addr = address;
    wr_.wr.atomic.compare_add = compare_add;
    wr_.wr.atomic.swap = swap;
    wr_.wr.atomic.rkey = rkey;
    return *this;
  }
  Request& immediate(std::uint32_t network_order) noexcept {
    wr_.imm_data = network_order;
    return *this;
  }
  /// Of a memory window of type 2.
  Request& bind(ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info& info) noexcept {
    wr_.bind_mw = {mw, rkey, info};
    return *this;
  }
  /// For IBV_WR_LOCAL_INV and IBV_WR_SEND_WITH_INV.
  Request& invalidate(std::uint32_t rkey) noexcept {
    wr_.invalidate_rkey = rkey;
    return *this;
  }
  /// Instead of IBV_SEND_SIGNALED alone.
  Request& flags(unsigned flags) noexcept {
    wr_.send_flags = flags;
    return *this;
  }
  /// The work request, valid while this object lives and is not changed.
  [[nodiscard]] ibv_send_wr& prepare() noexcept {
    wr_.sg_list = sges_.data();
    wr_.num_sge = static_cast<int>(sges_.size());
    return wr_;
  }
  /// 0 or the errno of ibv_post_send, which is then checked to have refused this request.
  int post(const Side& side) { return post(side.qp.get()); }
  int post(ibv_qp* qp);

 private:
  ibv_send_wr wr_{};
  std::vector<ibv_sge> sges_;
};

/// Posts the requests as one list. `bad` is the index of the refused one, or requests.size().
int post_list(ibv_qp* qp, std::span<Request> requests, std::size_t& bad);

/// Of a successful completion: work request, opcode and QP are as given.
[[nodiscard]] testing::AssertionResult succeeded(const ibv_wc& wc, std::uint64_t wr_id, ibv_wc_opcode opcode);
/// Of an unsuccessful one; only wr_id, status and qp_num are defined then.
[[nodiscard]] testing::AssertionResult failed(const ibv_wc& wc, std::uint64_t wr_id, ibv_wc_status status);

/// The steps from RESET to RTS.
[[nodiscard]] Result<void> to_reset(Nic& nic, ibv_qp* qp);
[[nodiscard]] Result<void> to_init(Nic& nic, ibv_qp* qp, const SideOptions& options);
[[nodiscard]] Result<void> to_rtr(Nic& nic, ibv_qp* qp, const QpAddress& peer, std::uint8_t sgid_index,
                                  const SideOptions& options, Deadline deadline = soon());
[[nodiscard]] Result<void> to_rts(Nic& nic, ibv_qp* qp, const SideOptions& options);
[[nodiscard]] Result<void> to_error(Nic& nic, ibv_qp* qp);

/// NICs only; tests make what they need.
class Bare : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Everything of a side up to a QP in RESET.
  void make(Side& side, const SideOptions& options);
  /// One more QP on a side's queues.
  [[nodiscard]] Qp make_qp(Side& side, QpOptions options);
  /// Two QPs of the sides, from RESET to RTS.
  void connect(Side& one, ibv_qp* one_qp, Side& other, ibv_qp* other_qp);
  /// a.qp and b.qp, with each other's windows imported.
  void connect();
  /// Both through RESET to RTS again.
  void reconnect();
  /// make and connect both.
  void make_pair(const SideOptions& a_options, const SideOptions& b_options);
  void make_pair(const SideOptions& both) { make_pair(both, both); }
  /// Lets `side` reach `region` of the other side.
  void import(Side& side, Side& owner, const ibv_mr* region);
  /// The same for a region that the NIC may refuse already here.
  void try_import(Side& side, Side& owner, const ibv_mr* region);

  [[nodiscard]] bool is_soft_roce() const;
  [[nodiscard]] bool is_simulated() const { return std::string_view(GetParam().nic) == "sim"; }
  /// As `failed`. Soft-RoCE calls any local error IBV_WC_LOC_QP_OP_ERR, and answers IBV_WC_REM_OP_ERR to a message that
  /// is longer than its receive.
  [[nodiscard]] testing::AssertionResult failed_as(const ibv_wc& wc, std::uint64_t wr_id, ibv_wc_status status) const;
  [[nodiscard]] std::uint64_t rounds(std::uint64_t count) const;

  void poll_both();
  /// The next `n` completions of a queue, in order, while both sides are polled. Fewer than that fails the test and is
  /// made up with completions of status IBV_WC_GENERAL_ERR.
  [[nodiscard]] std::vector<ibv_wc> sent(Side& side, std::size_t n);
  [[nodiscard]] std::vector<ibv_wc> received(Side& side, std::size_t n);
  [[nodiscard]] ibv_wc sent(Side& side);
  [[nodiscard]] ibv_wc received(Side& side);
  /// Polls both sides for a while, in which nothing must complete.
  void expect_quiet(std::chrono::milliseconds time = 20ms);
  /// Polls both sides until the QP is in `state`.
  [[nodiscard]] bool reaches(Side& side, ibv_qp_state state);

  std::unique_ptr<Nic> nic_a_;
  std::unique_ptr<Nic> nic_b_;  ///< Null when both sides live in nic_a_.
  Side a;
  Side b;

 private:
  [[nodiscard]] std::vector<ibv_wc> take(std::deque<ibv_wc>& queue, std::size_t n);
};

/// A connected pair with default options.
class Pair : public Bare {
 protected:
  void SetUp() override;
};

/// The simulated NIC lives in one thread, and its time passes in polls and waits only.
#define VERBENA_SKIP_IN_SIMULATION() \
  if (is_simulated()) GTEST_SKIP() << "the simulated NIC has one thread, and this test has two"

#define VERBENA_FOR_EVERY_NIC(Fixture) INSTANTIATE_TEST_SUITE_P(Nics, Fixture, testing::ValuesIn(every_case()), name_of)
#define VERBENA_FOR_TWO_NICS(Fixture) \
  INSTANTIATE_TEST_SUITE_P(Nics, Fixture, testing::ValuesIn(two_nic_cases()), name_of)
#define VERBENA_FOR_TWO_SOFT_NICS(Fixture) \
  INSTANTIATE_TEST_SUITE_P(Nics, Fixture, testing::ValuesIn(two_soft_nic_cases()), name_of)
#define VERBENA_FOR_THE_SOFT_NIC(Fixture) \
  INSTANTIATE_TEST_SUITE_P(Nics, Fixture, testing::ValuesIn(soft_cases()), name_of)

}  // namespace verbena::nic::conformance
