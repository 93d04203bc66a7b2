// A NIC for simulation: verbs as its specification has it, for one simulated process, in one thread and virtual time.
// It is the third implementation of nic::Nic beside `soft` and `verbs`, and the one to read. See docs/simulation.md.
#pragma once

#include "keys.hpp"
#include "objects.hpp"
#include "process.hpp"
#include "wire.hpp"

#include "nic/nic.hpp"

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>

namespace verbena::sim {

class SimNic final : public nic::Nic {
 public:
  /// As a device, it has to be told nothing of arenas and windows, and does not hear of peers.
  static constexpr nic::Capabilities kCapabilities{.has_atomics = true};

  /// `life` is kept as long as the NIC lives: what owns the network, where nothing else does.
  explicit SimNic(Process& process, std::shared_ptr<void> life = nullptr);
  ~SimNic() override;

  [[nodiscard]] Process& process() const noexcept { return process_; }
  [[nodiscard]] Network& network() const noexcept { return process_.network(); }
  [[nodiscard]] World& world() const noexcept { return network().world(); }
  [[nodiscard]] KeyTable& keys() noexcept { return keys_; }
  [[nodiscard]] SimQp* find(std::uint32_t qp_num) const noexcept;
  /// Its process is killed. What is left of it can only be destroyed.
  void die();
  /// A completion. Into a full queue it is lost, and takes the queue with it (IBTA 10.10.4.2).
  void push(SimCq& cq, const Cqe& entry, bool is_solicited);
  void take_message(SimQp& to, std::shared_ptr<const Message> message);
  void take_answer(SimQp& to, std::shared_ptr<const Answer> answer);

  nic::Kind kind() const noexcept override { return nic::Kind::kVerbs; }
  const char* name() const noexcept override { return "sim"; }
  const nic::Limits& limits() const noexcept override { return limits_; }
  const nic::Capabilities& capabilities() const noexcept override { return kCapabilities; }
  const ibv_gid& gid() const noexcept override { return gid_; }
  ibv_context* context() noexcept override { return &verbs_.context; }
  /// Where its process works directly: one-sided operations in the calling thread, as on the soft NIC.
  const nic::Direct* direct() const noexcept override;

  Result<ibv_pd*> alloc_pd() override;
  Result<void> dealloc_pd(ibv_pd* pd) override;
  Result<std::uint64_t> attach(const host::Arena& arena, const nic::Grant& grant) override;
  Result<void> grant(std::uint64_t memory_id, const nic::Grant& grant) override;
  Result<void> detach(std::uint64_t memory_id) override;
  Result<ibv_mr*> reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, int access) override;
  Result<void> dereg_mr(ibv_mr* mr, Deadline deadline) override;
  Result<ibv_mw*> alloc_mw(ibv_pd* pd) override;
  Result<void> dealloc_mw(ibv_mw* mw, Deadline deadline) override;
  using Nic::window_of;
  nic::Window window_of(const ibv_mr* mr) const noexcept override;
  Result<void> import_window(ibv_qp* qp, const nic::Window& window, Deadline deadline) override;
  Result<void> release_window(ibv_qp* qp, const nic::Window& window) override;
  Result<ibv_comp_channel*> create_channel() override;
  Result<void> destroy_channel(ibv_comp_channel* channel) override;
  /// Lets events happen until one of them is what the channel waits for. Time goes on to the deadline by itself.
  Result<ibv_cq*> wait(ibv_comp_channel* channel, Deadline deadline) override;
  void wake(ibv_comp_channel* channel) noexcept override;
  Result<ibv_cq*> create_cq(std::uint32_t cqe, ibv_comp_channel* channel) override;
  Result<void> destroy_cq(ibv_cq* cq) override;
  Result<ibv_srq*> create_srq(ibv_pd* pd, std::uint32_t max_wr, std::uint32_t max_sge) override;
  Result<void> destroy_srq(ibv_srq* srq) override;
  Result<ibv_qp*> create_qp(ibv_pd* pd, nic::QpOptions& options) override;
  Result<void> modify_qp(ibv_qp* qp, const ibv_qp_attr& attr, int mask, Deadline deadline) override;
  ibv_qp_state qp_state(const ibv_qp* qp) const noexcept override;
  Status qp_failure(const ibv_qp* qp) const noexcept override;
  void lose_peer(const ibv_qp* qp) noexcept override;
  Result<void> destroy_qp(ibv_qp* qp) override;
  nic::QpAddress address_of(const ibv_qp* qp) const noexcept override;
  Result<nic::PeerProcess> peer_of(const ibv_qp* qp) const override;
  Objects objects() const override;

  /// nic::Direct::poll
  static int poll_expecting(ibv_cq* cq, int count, ibv_wc* wc, ibv_qp* expected, std::byte* message,
                            std::uint32_t& bytes) noexcept;

 private:
  /// What ibv_post_send, ibv_poll_cq and the others of infiniband/verbs.h call.
  struct DataPath;
  /// A poll or a wait is where time passes for a program without a scheduler.
  void pass_time();
  void reset(SimQp& qp);

  Process& process_;
  std::shared_ptr<void> life_;
  KeyTable keys_;
  nic::Limits limits_;
  ibv_gid gid_{};
  verbs_context verbs_{};
  ibv_device device_{};
  bool is_dead_ = false;
  Objects objects_;
  std::map<std::uint32_t, std::shared_ptr<SimQp>> qps_;
};

/// A NIC for the suites that open theirs by name: each call is a process of its own, in one network as long as one of
/// them is open. VERBENA_SIM_SEED is the first network's seed (1), and each one after it has the next;
/// VERBENA_SIM_TRACE=1 tells the story on standard error, VERBENA_SIM_MUTANT is a mistake to make.
[[nodiscard]] Result<std::unique_ptr<nic::Nic>> open_simulated();

}  // namespace verbena::sim
