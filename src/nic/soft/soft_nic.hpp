// The software NIC: a verbs provider in user space for processes of one host. See docs/soft-nic.md.
//
// Threads. The data path (data_path.cpp) runs without locks in the thread that owns a CQ and the QPs on it. The control
// plane (soft_nic.cpp) runs under one mutex, in user threads and in the control thread, which sleeps unless a peer
// comes, goes or asks. To change what a poll reads, the control plane first sets the CQ's kExclusive, calls membarrier,
// and waits until the owner is outside poll; this costs the owner two plain stores a poll.
#pragma once

#include "base/shares.hpp"
#include "nic/nic.hpp"
#include "nic/soft/objects.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace verbena::nic::soft {

/// Options for tests, besides SoftOptions.
struct TestOptions {
  std::uint64_t ring_start = 0;  ///< First index of every ring, rounded to its slots, to test wrap-around.
};
[[nodiscard]] Result<std::unique_ptr<Nic>> open_for_test(const SoftOptions& options, const TestOptions& test);

/// Counts of system calls on the data path. Most belong to going to sleep and waking. \thread owner of the QP
struct PathCounters {
  std::uint64_t wakeups = 0;
  std::uint64_t barriers = 0;
  std::uint64_t copies = 0;    ///< process_vm_readv and writev: memory outside arenas.
  std::uint64_t services = 0;  ///< Requests to a peer's service thread.
  std::uint64_t checks = 0;    ///< Checks of an event descriptor between arming and its event.
};
inline constinit thread_local PathCounters thread_counters;

/// Wakes the peer's thread that waits on `remote`. Never blocks. \thread any
void wake_peer(const RemoteQp& remote) noexcept;

// Data path, as context->ops calls it.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept;
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept;
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) noexcept;
int req_notify_cq(ibv_cq* cq, int solicited_only) noexcept;
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept;
[[nodiscard]] const Direct& direct_operations() noexcept;
/// Earliest time at which a stalled send of `cq` gives up; never() if there is none.
[[nodiscard]] Deadline stall_deadline(SoftCq& cq) noexcept;
/// Asks the peers of stalled sends to signal credit; true if one can go on already.
[[nodiscard]] bool arm_stalled(SoftCq& cq) noexcept;
/// Call it when the bell of the channel has rung: makes an event due if the queue is armed, or makes progress only in a
/// poll.
void take_ring(SoftCq& cq) noexcept;

class SoftNic final : public Nic {
 public:
  static constexpr Capabilities kCapabilities{
      .has_atomics = true, .hears_of_peers = true, .sends_need_polls = true, .knows_users = true, .maps_windows = true};
  SoftNic(const SoftOptions& options, const TestOptions& test);
  ~SoftNic() override;
  [[nodiscard]] Result<void> start();

  Kind kind() const noexcept override { return Kind::kSoft; }
  const Capabilities& capabilities() const noexcept override { return kCapabilities; }
  const char* name() const noexcept override { return "soft"; }
  const Limits& limits() const noexcept override { return limits_; }
  const ibv_gid& gid() const noexcept override { return gid_; }
  ibv_context* context() noexcept override { return &verbs_.context; }
  const Direct* direct() const noexcept override { return &direct_operations(); }

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
  void notify_progress(int eventfd) noexcept override;
  ibv_qp_state qp_state(const ibv_qp* qp) const noexcept override;
  Status qp_failure(const ibv_qp* qp) const noexcept override;
  void lose_peer(const ibv_qp* qp) noexcept override;
  Result<void> destroy_qp(ibv_qp* qp) override;
  QpAddress address_of(const ibv_qp* qp) const noexcept override;
  Result<std::uint64_t> attest(std::span<const std::byte> sent) override;
  void retract(std::uint64_t attestation) noexcept override;
  Result<std::unique_ptr<Inquiry>> inquire(const ibv_gid& gid, std::span<const std::byte> sent) override;
  Result<PeerProcess> peer_of(const ibv_qp* qp) const override;
  Objects objects() const override;

  /// Local keys, for the data path. Entries are published by lkey.
  [[nodiscard]] const LocalKey& local_key(std::uint32_t index) const noexcept { return keys_.local[index]; }
  [[nodiscard]] LocalKey& local_key(std::uint32_t index) noexcept { return keys_.local[index]; }
  /// The index's entry in the table that peers read.
  [[nodiscard]] KeyEntry& shared_key(std::uint32_t index) noexcept {
    return reinterpret_cast<KeyEntry*>(keys_.shared.mapping.data())[index];
  }
  /// Makes a written entry valid for peers. \thread owner of the region or window
  void publish_key(std::uint32_t index, std::uint32_t rkey) noexcept {
    const std::uint64_t uses = ++keys_.local[index].uses;
    shared_key(index).live.store(uses << 32 | rkey, std::memory_order_release);
  }
  [[nodiscard]] std::uint32_t key_count() const noexcept { return options_.max_mr; }
  /// Makes the control thread wake the owners of QPs on shared receive queues, because an empty queue has receives
  /// again. \thread any
  void stir() noexcept { signal_eventfd(sources_.stir.get()); }
  /// How much of the control thread's time the requests of a process, or those of its user, have used.
  [[nodiscard]] Shares::Use use_of(const PeerProcess& process) const;
  /// Wakes the owners of the QP's queues. \thread any, while the QP lives
  static void ring_bells(const SoftQp& qp) noexcept;

 private:
  struct Memory {
    const std::byte* data = nullptr;
    std::size_t size = 0;
    int fd = -1;
    host::Share share = host::Share::kNone;
    Grant grant;
    host::Populate populate = host::Populate::kAll;
    std::uint32_t regions = 0;
    std::vector<PeerProcess> given{};  // Processes that have its descriptor, until there are kMostKnown.
    static constexpr std::size_t kMostKnown = 1024;
    void give_to(const PeerProcess& process);
    [[nodiscard]] bool is_given_to(const PeerProcess& process) const noexcept;
  };
  /// Objects that have ended and are not freed yet: to unmap memory takes long, and wakes of others wait for the lock.
  struct Ended {
    std::vector<std::unique_ptr<Peer>> peers;
    std::vector<std::unique_ptr<Peer::Memory>> memories;
    std::vector<std::unique_ptr<RemoteQp>> remotes;
  };
  /// Holds the mutex. Its release frees what has ended, after it.
  class Lock : public std::unique_lock<std::mutex> {
   public:
    explicit Lock(SoftNic& nic) : unique_lock(nic.mutex_), nic_(nic) {}
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() {
      if (owns_lock()) release();
    }
    void release() noexcept {
      const Ended ended = std::exchange(nic_.gone_.ended, {});
      unlock();
    }

   private:
    SoftNic& nic_;
  };
  struct Incoming {
    Fd socket;
    PeerProcess process;
    std::optional<Asker> asker;  // Nothing for a socket of this process, which needs no protection from itself.
    bool greeted = false;
    bool is_put_off = false;      // The control thread leaves what it sends in the socket.
    bool may_lack_wakes = false;  // It may have found its socket full, and rung no bell.
    std::unordered_map<std::uint32_t, std::weak_ptr<const Fd>> bells{};  // By number.
  };
  struct Source {
    enum class Kind : std::uint8_t { kListener, kStop, kStir, kRetry, kIncoming, kPeerSocket, kPeerPidfd } kind;
    Peer* peer = nullptr;
  };

  // rendezvous.cpp
  Result<void> open_rendezvous();
  void control_loop() noexcept;
  void accept_incoming() noexcept;
  void take_incoming(Fd socket, const PeerProcess& who, const std::optional<Asker>& asker) noexcept;
  bool evict_ungreeted() noexcept;
  void serve(std::map<std::uint64_t, Incoming>::iterator at) noexcept;
  /// A request was good for something, or for nothing, or its connection is gone.
  enum class Served : std::uint8_t { kDone, kInVain, kGone };
  [[nodiscard]] Served serve_now(std::map<std::uint64_t, Incoming>::iterator at) noexcept;
  void put_off(std::uint64_t id, Incoming& incoming, bool wanted) noexcept;
  void ring_if_read(Incoming& incoming) noexcept;
  void resume_incoming() noexcept;
  void pause_listener(bool wanted) noexcept;
  [[nodiscard]] Answer answer(Incoming& incoming, const Request& request, std::span<const std::byte> attested, Fds& fds,
                              Reply& reply, Handout& out);
  [[nodiscard]] bool serve_quietly(const Incoming& incoming, const Request& request) noexcept;
  void drop_incoming(std::map<std::uint64_t, Incoming>::iterator at) noexcept;
  void take_offer(Incoming& incoming, const Request& request, Fds& fds);
  [[nodiscard]] static std::shared_ptr<const Fd> keep_bell(Incoming& incoming, std::uint32_t number, Fd duplicate);
  [[nodiscard]] bool may_have(const Memory& memory, const PeerProcess& process) const;
  std::uint64_t add_source(int fd, std::uint32_t events, Source source);
  void watch_source(std::uint64_t id, int fd, bool wanted) noexcept;
  void drop_source(std::uint64_t id, int fd) noexcept;
  [[nodiscard]] bool allowed(uid_t uid) const noexcept;

  // peers.cpp, all under mutex_
  [[nodiscard]] Result<Peer*> find_peer(const ibv_gid& gid);
  [[nodiscard]] Result<void> connect_to(Peer& peer);
  [[nodiscard]] Result<void> introduce(Peer& peer, Ask& hello);
  void ask(Peer& peer, std::shared_ptr<Ask> ask);
  void send_asks(Peer& peer) noexcept;
  void await_room(Peer& peer, bool wanted) noexcept;
  void take_answers(Peer& peer) noexcept;
  void drop_ask(Peer& peer, const Ask& ask) noexcept;
  /// Tries again work for which the kernel gives no event, and serves again who has been put off.
  void retry_later(std::chrono::nanoseconds pause = std::chrono::milliseconds{5}) noexcept;
  void retry() noexcept;
  void unwatch(Peer& peer) noexcept;
  void lose_peer(Peer& peer, const Error& why) noexcept;
  void tell_progress() noexcept;
  [[nodiscard]] bool await_answer(std::unique_lock<std::mutex>& lock, Deadline deadline);
  void release_peer(Peer* peer) noexcept;
  [[nodiscard]] static bool lacks_pages(const SoftQp& qp) noexcept;
  [[nodiscard]] Result<void> make_pages(SoftQp& qp, Lock& lock);

  // attestations.cpp
  class PeerInquiry;
  [[nodiscard]] bool confirm(std::span<const std::byte> sent) noexcept;  // Under mutex_.

  // outside.cpp, under mutex_: the service thread
  [[nodiscard]] bool serve_outside(SoftQp& qp) noexcept;
  [[nodiscard]] bool receive_for_owner(SoftQp& qp) noexcept;  // soft_nic.cpp
  [[nodiscard]] std::byte* address_for_peer(const SoftQp& qp, const ServiceTask& ask, std::uint32_t needed) noexcept;

  // soft_nic.cpp, all under mutex_ unless said
  [[nodiscard]] Result<void> make_shared_memory(SoftQp& qp);
  void link(SoftQp& qp);
  [[nodiscard]] Result<void> to_init(SoftQp& qp, const ibv_qp_attr& attr, int mask);
  [[nodiscard]] Result<void> to_rtr(SoftQp& qp, const ibv_qp_attr& attr, int mask, Deadline deadline, Lock& lock);
  [[nodiscard]] Result<void> approach(SoftQp& qp);
  void make_offer(SoftQp& qp);
  void end_approach(SoftQp& qp) noexcept;
  [[nodiscard]] static bool move(SoftQp& qp, ibv_qp_state from, ibv_qp_state to) noexcept;
  void retreat(SoftQp& qp, Status reason) noexcept;
  [[nodiscard]] Result<void> to_rts(SoftQp& qp, const ibv_qp_attr& attr, int mask);
  [[nodiscard]] Result<void> to_reset(SoftQp& qp);
  /// A peer that was inside an access.
  struct Inside {
    std::uint32_t qp_num = 0;
    const RemoteQp* remote = nullptr;  // Only to compare.
    std::uint64_t word = 0;            // The peer's access word, odd.
  };
  /// What is left of a queue pair that was reset or destroyed while its peer was inside an access.
  struct Departed {
    std::uint32_t qp_num = 0;
    const SoftPd* pd = nullptr;  // Only to compare.
    std::uint64_t word = 0;
    std::unique_ptr<RemoteQp> remote;  // Counts as a use of its peer.
  };
  [[nodiscard]] const RemoteQp* find_remote(const Inside& inside) const noexcept;
  [[nodiscard]] bool stays(const Inside& inside) const noexcept;
  [[nodiscard]] bool is_late(const Inside& inside) const noexcept;
  void depart(SoftQp& qp) noexcept;
  void forget_departed() noexcept;
  [[nodiscard]] Result<void> wait_until_left(std::vector<Inside> inside, std::unique_lock<std::mutex>& lock,
                                             const char* call, Deadline deadline);
  [[nodiscard]] Result<std::uint32_t> take_key(const char* call);
  void give_key_back(std::uint32_t index);
  void release_windows(const SoftQp& qp) noexcept;
  void match_offer(SoftQp& qp) noexcept;
  /// The work of an attempt to import that its caller does without the lock.
  struct Rest {
    std::shared_ptr<Ask> unproven;  // Look whether its memory is whole, then try again.
    std::byte* data = nullptr;      // To fault in.
    std::size_t size = 0;
    bool writable = false;
  };
  [[nodiscard]] Result<void> try_import(SoftQp& qp, const Window& window, Rest& rest);
  [[nodiscard]] Result<Peer::Memory*> memory_of_peer(const SoftQp& qp, Peer& peer, std::uint64_t memory_id, Rest& rest);
  [[nodiscard]] Result<Mapping> map_memory(const Peer& peer, const Ask& ask) const;
  void stop_asking(const SoftQp& qp, Peer& peer) noexcept;
  enum class Unlink : std::uint8_t { kForReset, kForGood };
  void unlink(SoftQp& qp, Unlink how) noexcept;
  void purge(SoftQp& qp) noexcept;
  void release_imports(SoftQp& qp) noexcept;
  void drop_import(Peer& peer, std::uint32_t index) noexcept;
  void forget(Peer& peer, std::vector<std::unique_ptr<Peer::Memory>>::iterator memory) noexcept;
  void quiesce_own(const Peer& peer) noexcept;
  void find_copier(Peer& peer);
  static void attention(SoftQp& qp) noexcept;
  static void want_error(SoftQp& qp, Status reason) noexcept;
  [[nodiscard]] static std::optional<ibv_cq*> take_event(SoftChannel& channel) noexcept;
  /// Whether chaos delays a step of the control plane, or loses a message.
  [[nodiscard]] bool is_late() noexcept { return retry_.chaos && retry_.chaos->dice.hits(retry_.chaos->late); }
  [[nodiscard]] bool is_cut() noexcept { return retry_.chaos && retry_.chaos->dice.hits(retry_.chaos->cut); }
  [[nodiscard]] std::uint64_t chaos_stream(std::uint32_t number) const noexcept {
    return std::uint64_t{ordinal_} << 32 | number;
  }
  template <class Change>
  static void exclusively(SoftCq& cq, Change&& change) noexcept;

  SoftOptions options_;
  TestOptions test_;
  // Soft NICs of this process, and how many existed before this one, so that the chaos of two NICs differs.
  inline static std::atomic<std::uint32_t> live_{0};
  const std::uint32_t ordinal_;
  std::vector<uid_t> allowed_uids_;
  Limits limits_;
  ibv_gid gid_{};
  ibv_device device_{};
  verbs_context verbs_{};

  mutable std::mutex mutex_;
  struct {
    Mapping::Owned shared;  // KeyEntry[max_mr]
    LazyTable<LocalKey> local;
    std::vector<std::uint8_t> generations;
    std::vector<std::uint32_t> free;  // A queue: the oldest index is reused first.
    std::size_t free_head = 0;
  } keys_;
  struct {
    Mapping::Owned words;     // kReadyWords a CQ
    std::vector<bool> taken;  // Whether a CQ uses it.
  } ready_;
  std::map<std::uint64_t, Memory> memories_;
  struct Attested {
    std::vector<std::byte> bytes;
    bool is_confirmed = false;
  };
  struct {
    std::uint64_t next = 1;
    std::unordered_map<std::uint64_t, Attested> by_number;
  } attested_;
  struct {
    std::uint64_t memory = 1;
    std::uint32_t pd = 1;
    std::uint32_t qp = 1;
    std::uint32_t cq = 1;
    std::uint32_t bell = 1;
  } next_;  // Next numbers.
  std::unordered_map<std::uint32_t, SoftQp*> qps_;
  std::vector<std::unique_ptr<Peer>> peers_;
  struct {
    std::vector<Departed> departed;
    Ended ended;
  } gone_;
  std::vector<std::unique_ptr<SoftMw>> windows_;
  Objects objects_;

  struct {
    Fd epoll;
    std::uint64_t next = 1;
    std::unordered_map<std::uint64_t, Source> by_id;
    Fd stop;  // Eventfds of the NIC's own.
    Fd stir;
  } sources_;  // Sources of events for the control thread.
  struct {
    Fd socket;
    std::uint64_t source = 0;
    bool is_paused = false;                      // The process is out of descriptors, or a peer connects all the time.
    std::map<std::uint64_t, Incoming> incoming;  // Ordered by age.
    // An honest peer whose memory the control thread copies without a pause uses a fifth of the thread.
    Shares requests{4};
    Shares connections{16};  // They have their own, so that requests keep nobody from connecting.
  } listener_;
  struct {
    Fd timer;
    bool is_set = false;
    std::optional<ControlChaos> chaos;  // Under the mutex, once the NIC is open.
  } retry_;                             // For conditions without kernel events: room in a listener's backlog.
  struct {
    std::condition_variable told;  // Notified when a peer's NIC has answered or is lost.
    int eventfd = -1;              // The caller's.
  } progress_;
  std::thread control_;  // Last: reads everything above.
};

}  // namespace verbena::nic::soft
