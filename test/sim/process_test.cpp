// Simulated processes that stop, lose each other, die and come again.
#include "process.hpp"
#include "sim_nic.hpp"

#include "pattern.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace verbena::sim {
namespace {

constexpr std::size_t kBytes = 65536;
constexpr Nanoseconds kLong = 200'000'000;  // All retries of a request.
constexpr std::uint8_t kSimTimeout = 10;    // 4 ms
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// A process with a NIC, memory and one reliable queue pair.
struct Party {
  explicit Party(Process& of)
      : process(of),
        nic(std::make_unique<SimNic>(of)),
        memory(of.memory("heap", kBytes)),
        pd(*nic, *nic->alloc_pd()),
        mr(*nic,
           *nic->reg_mr(pd.get(), memory.data(), kBytes, reinterpret_cast<std::uint64_t>(memory.data()), kAccess)),
        cq(*nic, *nic->create_cq(64, nullptr)) {
    nic::QpOptions options{.send_cq = cq.get(), .recv_cq = cq.get()};
    qp = nic::Qp(*nic, *nic->create_qp(pd.get(), options));
  }
  void connect(const Party& peer) const {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    ASSERT_OK(nic->modify_qp(qp.get(), attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                             Deadline::never()));
    attr.qp_state = IBV_QPS_RTR;
    attr.dest_qp_num = peer.qp->qp_num;
    attr.min_rnr_timer = 1;
    attr.ah_attr.grh.dgid = peer.nic->gid();
    ASSERT_OK(nic->modify_qp(qp.get(), attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                             Deadline::never()));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = kSimTimeout;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    ASSERT_OK(nic->modify_qp(
        qp.get(), attr,
        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        Deadline::never()));
  }
  void write(std::uint64_t wr_id, const Party& to, std::size_t offset, std::uint32_t length) const {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory.data()), length, mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma = {reinterpret_cast<std::uint64_t>(to.memory.data()) + offset, to.mr->rkey};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
  }
  [[nodiscard]] std::vector<ibv_wc_status> statuses() const {
    std::vector<ibv_wc_status> statuses;
    ibv_wc wc{};
    while (ibv_poll_cq(cq.get(), 1, &wc) == 1) statuses.push_back(wc.status);
    return statuses;
  }

  Process& process;
  std::unique_ptr<SimNic> nic;
  std::span<std::byte> memory;
  nic::Pd pd;
  nic::Mr mr;
  nic::Cq cq;
  nic::Qp qp;
};

class Processes : public testing::Test {
 protected:
  using Statuses = std::vector<ibv_wc_status>;
  void begin(std::uint64_t lost_one_in = 0) {
    network_ =
        std::make_unique<Network>(Network::Options{.seed = 5, .polls_pass_time = false, .lost_one_in = lost_one_in});
    ada_ = std::make_unique<Party>(network_->add_process("Ada"));
    bob_ = std::make_unique<Party>(network_->add_process("Bob"));
    connect();
    test::fill(ada_->memory, 3);
  }
  void connect() const {
    ASSERT_NO_FATAL_FAILURE(ada_->connect(*bob_));
    ASSERT_NO_FATAL_FAILURE(bob_->connect(*ada_));
  }
  [[nodiscard]] World& world() const { return network_->world(); }
  [[nodiscard]] bool has_written(std::uint32_t length) const {
    return std::memcmp(ada_->memory.data(), bob_->memory.data(), length) == 0;
  }

  std::unique_ptr<Network> network_;
  std::unique_ptr<Party> ada_;
  std::unique_ptr<Party> bob_;
};

TEST_F(Processes, ANicServesWhileItsProcessStandsStill) {
  begin();
  bob_->process.stop();
  ada_->write(1, *bob_, 0, 1000);
  world().run_for(kLong);
  bob_->process.resume();
  EXPECT_EQ(ada_->statuses(), Statuses{IBV_WC_SUCCESS});
  EXPECT_TRUE(has_written(1000));
}

TEST_F(Processes, TheDeadDoNotAnswer) {
  begin();
  bob_->process.kill();
  ada_->write(1, *bob_, 0, 1000);
  ada_->write(2, *bob_, 0, 1000);
  world().run_for(kLong);
  EXPECT_EQ(ada_->statuses(), (Statuses{IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR}));
  EXPECT_TRUE(test::all_are(bob_->memory, std::byte{0}));
}

// In the middle of a message, at every place: some of it has arrived, and no more comes.
TEST_F(Processes, DeathEndsAMessageAnywhere) {
  bool was_torn = false;
  for (Nanoseconds at = 0; at < 6000; at += 50) {
    bob_.reset();
    ada_.reset();
    begin();
    ada_->write(1, *bob_, 0, 700);
    world().run_for(at);
    const std::vector<std::byte> before(bob_->memory.begin(), bob_->memory.end());
    bob_->process.kill();
    world().run_for(kLong);
    EXPECT_EQ(std::memcmp(before.data(), bob_->memory.data(), kBytes), 0) << "killed after " << at << " ns";
    was_torn |= !test::all_are(bob_->memory.first(700), std::byte{0}) && !has_written(700);
  }
  EXPECT_TRUE(was_torn);
}

TEST_F(Processes, RestartWithItsMemory) {
  for (const auto kind : {Process::Memory::kKept, Process::Memory::kEmpty}) {
    bob_.reset();
    ada_.reset();
    begin();
    ada_->write(1, *bob_, 0, 1000);
    world().run_for(kLong);
    Process& process = bob_->process;
    process.kill();
    bob_.reset();
    process.restart(kind);
    EXPECT_EQ(process.incarnation(), 1U);
    bob_ = std::make_unique<Party>(process);
    EXPECT_EQ(has_written(1000), kind == Process::Memory::kKept);
    EXPECT_EQ(ada_->statuses(), Statuses{IBV_WC_SUCCESS});
    // What the old connection still sends reaches nobody.
    ada_->write(2, *bob_, 4096, 8);
    world().run_for(kLong);
    EXPECT_EQ(ada_->statuses(), Statuses{IBV_WC_RETRY_EXC_ERR});
    EXPECT_TRUE(test::all_are(bob_->memory.subspan(4096, 8), std::byte{0}));
  }
}

// Who is cut off in one direction is done, and does not hear of it: the classic doubt of a lost acknowledgement.
TEST_F(Processes, CutOneWay) {
  begin();
  network_->cut(bob_->process, ada_->process);
  ada_->write(1, *bob_, 0, 1000);
  world().run_for(kLong);
  EXPECT_EQ(ada_->statuses(), Statuses{IBV_WC_RETRY_EXC_ERR});
  EXPECT_TRUE(has_written(1000));
  EXPECT_EQ(bob_->nic->qp_state(bob_->qp.get()), IBV_QPS_RTS);
}

TEST_F(Processes, ACutThatHealsIsRepaired) {
  begin();
  network_->cut_both_ways(ada_->process, bob_->process);
  for (std::uint64_t i = 0; i < 20; ++i) ada_->write(i, *bob_, i * 100, 100);
  world().run_for(5'000'000);
  EXPECT_TRUE(ada_->statuses().empty());
  EXPECT_TRUE(test::all_are(bob_->memory, std::byte{0}));
  network_->heal(ada_->process, bob_->process);
  network_->heal(bob_->process, ada_->process);
  world().run_for(kLong);
  EXPECT_EQ(ada_->statuses(), Statuses(20, IBV_WC_SUCCESS));
  EXPECT_TRUE(has_written(100));
}

// Lost packets and lost answers are repaired, and nothing is done out of its order.
TEST_F(Processes, LossIsRepaired) {
  begin(10);
  for (std::uint64_t i = 0; i < 60; ++i) ada_->write(i, *bob_, 0, 1000 - static_cast<std::uint32_t>(i));
  world().run_for(50 * kLong);
  EXPECT_EQ(ada_->statuses(), Statuses(60, IBV_WC_SUCCESS));
  EXPECT_TRUE(has_written(900));
}

}  // namespace
}  // namespace verbena::sim
