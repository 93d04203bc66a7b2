// The NIC over a table of libibverbs functions.
//
// Verbs objects belong to the library. The NIC keeps its own data about them in tables by their addresses, which only
// the control plane uses. The data path goes from the inline functions to the device's provider directly.
#pragma once

#include "base/fd.hpp"
#include "base/fork.hpp"
#include "nic/event_thread.hpp"
#include "nic/verbs.hpp"
#include "nic/verbs/library.hpp"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace verbena::nic::verbs {

/// Like open_verbs and list_devices, over any library. `library` must outlive the NIC.
[[nodiscard]] Result<std::unique_ptr<Nic>> open_with(const VerbsLibrary& library, const VerbsOptions& options);
[[nodiscard]] Result<std::vector<DeviceSummary>> list_with(const VerbsLibrary& library);

class VerbsNic final : public Nic {
 public:
  explicit VerbsNic(const VerbsLibrary& library) noexcept : library_(library) {}
  ~VerbsNic() override;
  /// Opens one device. Call it once. If it fails, the destructor releases what it has made.
  [[nodiscard]] Result<void> start(ibv_device* device, const VerbsOptions& options);

  Kind kind() const noexcept override { return Kind::kVerbs; }
  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  const char* name() const noexcept override { return context_->device->name; }
  const Limits& limits() const noexcept override { return limits_; }
  const ibv_gid& gid() const noexcept override { return facts_.gid.gid; }
  ibv_context* context() noexcept override { return context_; }
  [[nodiscard]] const DeviceFacts& facts() const noexcept { return facts_; }

  Result<ibv_pd*> alloc_pd() override;
  Result<void> dealloc_pd(ibv_pd* pd) override;
  Result<std::uint64_t> attach(const host::Arena& arena, const Grant& grant) override;
  Result<void> grant(std::uint64_t memory_id, const Grant& grant) override;
  Result<void> detach(std::uint64_t memory_id) override;
  Result<ibv_mr*> reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, int access) override;
  Result<void> dereg_mr(ibv_mr* mr, Deadline deadline) override;
  Result<ibv_mw*> alloc_mw(ibv_pd* pd) override;
  Result<void> dealloc_mw(ibv_mw* mw, Deadline deadline) override;
  using Nic::window_of;
  Window window_of(const ibv_mr* mr) const noexcept override;
  Result<void> import_window(ibv_qp* qp, const Window& window, Deadline deadline) override;
  Result<void> release_window(ibv_qp* qp, const Window& window) override;
  Result<ibv_comp_channel*> create_channel() override;
  Result<void> destroy_channel(ibv_comp_channel* channel) override;
  Result<ibv_cq*> wait(ibv_comp_channel* channel, Deadline deadline) override;
  void wake(ibv_comp_channel* channel) noexcept override;
  Result<ibv_cq*> create_cq(std::uint32_t cqe, ibv_comp_channel* channel) override;
  Result<void> destroy_cq(ibv_cq* cq) override;
  Result<ibv_srq*> create_srq(ibv_pd* pd, std::uint32_t max_wr, std::uint32_t max_sge) override;
  Result<void> destroy_srq(ibv_srq* srq) override;
  Result<ibv_qp*> create_qp(ibv_pd* pd, QpOptions& options) override;
  Result<void> modify_qp(ibv_qp* qp, const ibv_qp_attr& attr, int mask, Deadline deadline) override;
  ibv_qp_state qp_state(const ibv_qp* qp) const noexcept override;
  Status qp_failure(const ibv_qp* qp) const noexcept override;
  void lose_peer(const ibv_qp* qp) noexcept override;
  Result<void> destroy_qp(ibv_qp* qp) override;
  QpAddress address_of(const ibv_qp* qp) const noexcept override;
  Result<PeerProcess> peer_of(const ibv_qp* qp) const override;
  Objects objects() const override;

 private:
  /// A protection domain's parent domain for the queue pairs of one completion queue's owner.
  struct ParentDomain {
    ibv_cq* cq;
    ibv_pd* pd;
  };
  struct PdEntry {
    std::uint32_t users = 0;
    std::vector<ParentDomain> parents;  // Kept until the CQ or the PD is destroyed.
  };
  struct MrEntry {
    ibv_pd* pd;
    std::uint64_t iova;
    std::uint32_t access;
  };
  struct CqEntry {
    ibv_comp_channel* channel;
    ibv_td* td;  // Null if the device has none, or none left.
    std::uint32_t users = 0;
  };
  struct SrqEntry {
    ibv_pd* pd;
    std::uint32_t users = 0;
  };
  struct QpEntry {
    ibv_pd* pd;
    ibv_cq* send_cq;
    ibv_cq* recv_cq;
    ibv_srq* srq;
    ibv_qp_state state = IBV_QPS_RESET;  // The last requested state.
    Status failure = Status::kOk;
    std::unordered_map<std::uint32_t, std::uint32_t> imports;  // Number of imports by key.
  };
  /// Data of a channel for `wait` and `wake`. `wake` may run in a signal handler, so it takes no lock: it walks a list
  /// that only grows; slots are reused.
  struct ChannelSlot {
    std::atomic<ibv_comp_channel*> channel{nullptr};
    Fd epoll;
    Fd wake;
    std::uint32_t cqs = 0;
    ChannelSlot* next = nullptr;
  };

  // Opening.
  [[nodiscard]] Result<void> choose_port(std::uint8_t wanted, std::uint8_t count, ibv_port_attr& attr);
  [[nodiscard]] Result<void> find_gid(const ibv_port_attr& attr, const GidWanted& wanted);
  [[nodiscard]] Result<std::uint32_t> find_max_inline();
  [[nodiscard]] Error probe_error(const char* call, int cause) const noexcept;
  [[nodiscard]] Result<void> start_events();

  // Events.
  /// False once the device is gone.
  [[nodiscard]] bool take_event() noexcept;
  void on_event(const ibv_async_event& event) noexcept;
  template <class Predicate>
  void fail_where(Status reason, Predicate&& predicate) noexcept;

  [[nodiscard]] ChannelSlot* slot_of(const ibv_comp_channel* channel) const noexcept;
  [[nodiscard]] Result<void> release_parent(ibv_pd* parent) const;
  [[nodiscard]] ibv_pd* domain_for(ibv_pd* pd, PdEntry& entry, ibv_cq* recv_cq);
  void complete_path(ibv_qp_attr& attr, int mask) const noexcept;

  const VerbsLibrary& library_;
  ibv_context* context_ = nullptr;
  ClosedInChildren commands_;  // When the last holder closes these, the kernel frees our objects.
  ClosedInChildren news_;
  Limits limits_;
  Capabilities capabilities_;
  DeviceFacts facts_;
  std::uint16_t lid_ = 0;
  bool needs_grh_ = false;  // The port routes by GID only.

  mutable std::mutex mutex_;
  std::unordered_map<ibv_pd*, PdEntry> pds_;
  std::unordered_map<const ibv_mr*, MrEntry> mrs_;
  std::unordered_map<const ibv_mw*, ibv_pd*> mws_;
  std::unordered_map<ibv_cq*, CqEntry> cqs_;
  std::unordered_map<ibv_srq*, SrqEntry> srqs_;
  std::unordered_map<const ibv_qp*, QpEntry> qps_;
  std::atomic<ChannelSlot*> channels_{nullptr};
  std::uint32_t channel_count_ = 0;
  std::uint32_t arenas_ = 0;

  EventThread events_;  // Last: reads everything above.
};

}  // namespace verbena::nic::verbs
