// The NIC seam: everything of verbs that is not one of the five inline data-path functions.
//
// The data path above the seam speaks the public verbs structs through ibv_post_send, ibv_post_recv, ibv_poll_cq,
// ibv_req_notify_cq and ibv_post_srq_recv, which call through `context->ops`. Everything else goes through this
// interface, whose two implementations are `soft/` (user space, processes of one host) and `verbs/` (rdma-core).
#pragma once

#include "host/arena.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <infiniband/verbs.h>

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace verbena::nic {

enum class Kind : std::uint8_t { kSoft = 1, kVerbs = 2 };
[[nodiscard]] const char* to_string(Kind kind) noexcept;

/// Limits of the device; queried once, at open.
struct Limits {
  std::uint32_t max_qp = 0;
  std::uint32_t max_cq = 0;
  std::uint32_t max_mr = 0;
  std::uint32_t max_pd = 0;
  std::uint32_t max_mw = 0;      ///< 0: the device has no memory windows.
  std::uint32_t max_srq = 0;     ///< 0: the device has no shared receive queues.
  std::uint32_t max_srq_wr = 0;  ///< Receives in one shared queue.
  std::uint32_t max_qp_wr = 0;   ///< Work requests in one send or receive queue.
  std::uint32_t max_cqe = 0;
  std::uint32_t max_sge = 0;
  std::uint32_t max_inline = 0;     ///< Bytes of IBV_SEND_INLINE that a QP can have.
  std::uint32_t max_rd_atomic = 0;  ///< READs and atomics outstanding on one QP, either role.
  std::uint32_t max_message = 0;    ///< Bytes in one work request.
  bool is_soft_roce = false;        ///< The kernel's rxe, on which posting is a system call.
};

/// The network that carries a QP's packets. Both ends need the same; the only sign of a mismatch is packets that never
/// arrive.
enum class Network : std::uint8_t { kNone = 0, kInfiniBand = 1, kRoceV1 = 2, kRoceV2Ipv4 = 3, kRoceV2Ipv6 = 4 };
[[nodiscard]] const char* to_string(Network network) noexcept;

/// Address of a QP, which its peer needs to bring its own QP to RTR.
struct QpAddress {
  ibv_gid gid{};
  std::uint32_t qp_num = 0;
  std::uint32_t psn = 0;  ///< First packet sequence number, 24 bits.
  std::uint16_t lid = 0;  ///< InfiniBand only.
  std::uint8_t mtu = 0;   ///< ibv_mtu.
  std::uint8_t max_rd_atomic = 0;
  Network network = Network::kNone;  ///< kNone on the soft NIC.
};

/// A memory region as peers know it. Plain numbers: handshakes and messages carry it.
struct Window {
  std::uint64_t address = 0;  ///< First IO virtual address.
  std::uint64_t length = 0;   ///< Bytes.
  std::uint32_t rkey = 0;
  std::uint32_t access = 0;     ///< IBV_ACCESS_* as registered.
  std::uint64_t memory_id = 0;  ///< Soft NIC: the number of the owner's memfd; 0 on a device.
  friend bool operator==(const Window&, const Window&) = default;
};
static_assert(sizeof(Window) == 32);

/// Another user than this process's, but not root, who could harm this process in other ways.
[[nodiscard]] inline bool is_stranger(uid_t user) noexcept { return user != 0 && user != ::geteuid(); }

/// Tells the NICs of peers apart, by their GIDs: two have the same number once in 65,535 times. Never 0.
[[nodiscard]] inline std::uint16_t number_of(const ibv_gid& gid) noexcept {
  // Multiplicative hashing, by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).
  constexpr std::uint64_t kRatio = 0x9e3779b97f4a7c15;
  const std::uint64_t mixed = (gid.global.subnet_prefix * kRatio) ^ gid.global.interface_id;
  const auto number = static_cast<std::uint16_t>(mixed * kRatio >> 48);
  return number != 0 ? number : std::uint16_t{1};
}
/// Whether memory of the peer whose NIC has `number` may be that of `peer`'s: it is, or it is not known (0).
[[nodiscard]] constexpr bool may_be_of(std::uint16_t number, std::uint16_t peer) noexcept {
  // One branch, as two would keep the compiler from making one function of a blocking call down to the NIC.
  return std::uint32_t{number} * static_cast<std::uint32_t>(number ^ peer) == 0;
}

/// The process behind a connected QP, as the kernel reports it; empty on a device.
struct PeerProcess {
  pid_t pid = 0;
  uid_t uid = 0;
  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};

struct QpOptions {
  ibv_cq* send_cq = nullptr;
  ibv_cq* recv_cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp_type type = IBV_QPT_RC;
  std::uint32_t max_send_wr = 128;
  std::uint32_t max_recv_wr = 128;
  std::uint32_t max_send_sge = 4;
  std::uint32_t max_recv_sge = 4;
  std::uint32_t max_inline = 64;
  bool signal_all = false;  ///< sq_sig_all.
};

/// The processes that may get an arena's file descriptor (soft NIC).
struct Grant {
  enum class To : std::uint8_t {
    kNobody,   ///< Used by this process only.
    kAnyPeer,  ///< Every process that the allow-list lets connect.
    kOneGid,   ///< Only the process whose NIC has `gid`. Use it for a writable memfd if peers may be hostile.
    kUsers,    ///< Only processes of `users` that the allow-list lets connect.
  };
  To to = To::kNobody;
  ibv_gid gid{};
  std::vector<uid_t> users{};
};

/// One READ of a list into memory that need not be registered.
struct PlainRead {
  std::byte* to = nullptr;
  std::uint32_t bytes = 0;
  std::uint64_t from = 0;
};

/// Operations that the software NIC carries out in the calling thread, without its queues. They have the
/// effect of posting and polling when nothing is queued. True: done. False: not executed, no side effect; post it
/// normally to get the result or the precise error. Requests posted before are executed, but perhaps not polled yet.
/// \thread owner of the QP  \alloc none
struct Direct {
  /// Not executed either: no bytes, more than the NIC's longest message, a READ where the QP's type has none.
  using Move = bool (*)(ibv_qp* qp, std::byte* local, std::uint32_t lkey, std::uint64_t bytes, std::uint64_t remote,
                        std::uint32_t rkey) noexcept;
  Move read = nullptr;
  Move write = nullptr;
  /// The same for local memory that need not be registered: these ignore the lkey.
  Move read_plain = nullptr;
  Move write_plain = nullptr;
  /// `opcode` is IBV_WR_ATOMIC_FETCH_AND_ADD (of `operand`) or IBV_WR_ATOMIC_CMP_AND_SWP (`operand` to `swap`).
  bool (*atomic)(ibv_qp* qp, ibv_wr_opcode opcode, std::uint64_t operand, std::uint64_t swap, std::uint64_t remote,
                 std::uint32_t rkey, std::uint64_t& old) noexcept = nullptr;
  /// `count` READs, 1 to kMaxList, from one region; their cache misses overlap. Executes all of them, or none.
  static constexpr std::size_t kMaxList = 32;
  bool (*read_list)(ibv_qp* qp, const PlainRead* reads, std::size_t count, std::uint32_t rkey) noexcept = nullptr;
  /// An unsignaled SEND of `count` parts with IBV_SEND_INLINE: copies up to the QP's max_inline and ignores the lkeys.
  bool (*send)(ibv_qp* qp, const ibv_sge* parts, std::size_t count) noexcept = nullptr;
  /// Longest message that `poll` takes.
  static constexpr std::uint32_t kMostTaken = 112;
  /// As ibv_poll_cq, but when there is no completion and one short SEND waits for `expected`, a QP that receives on
  /// this CQ: puts its bytes into `message` (kMostTaken bytes), sets `bytes` to their number, and returns 0. Neither a
  /// receive nor a completion is used: the receive that the SEND would have taken becomes the last one posted. Sets
  /// `bytes` to 0 if it has taken none. \thread owner of the CQ and of `expected`
  int (*poll)(ibv_cq* cq, int count, ibv_wc* wc, ibv_qp* expected, std::byte* message,
              std::uint32_t& bytes) noexcept = nullptr;
};

/// Properties of a NIC that matter to the layers above. They ask for these and never for the kind of NIC.
struct Capabilities {
  bool has_atomics = false;         ///< Fetch-and-add and compare-and-swap of a peer's memory.
  bool doorbell_is_costly = false;  ///< A post writes to a device over PCIe, so it pays to gather work requests.
  bool hears_of_peers = false;      ///< The NIC itself reports that a peer's process has ended; no keepalive is needed.
  bool sends_need_polls = false;    ///< Posted requests make progress only while their owner polls.
  bool pins_memory = false;         ///< Registered memory counts against RLIMIT_MEMLOCK.
  bool knows_users = false;         ///< The kernel tells the user of a peer's process.
  bool maps_windows = false;        ///< A peer's window must be imported, which maps it into this process.
  const char* locality_name = nullptr;  ///< Name of the device for host::Topology; null: it has no place.
};

/// A question to a peer's NIC: has your process sent these bytes? Its destructor cancels it. \thread any
class Inquiry {
 public:
  virtual ~Inquiry() = default;
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;
  /// Returns the process that has sent them. Errors: kNotAllowed (it has not sent them, or has confirmed them before),
  /// kPeerLost, kProtocol, kTimedOut. With `Deadline::now()` it does not wait, and returns kAgain until the peer's NIC
  /// has answered (notify_progress).
  [[nodiscard]] virtual Result<PeerProcess> answer(Deadline deadline) = 0;
  /// The user of the process that is asked; none until it is known. Does not wait.
  [[nodiscard]] virtual std::optional<uid_t> uid() const = 0;

 protected:
  Inquiry() = default;
};

class Nic {
 public:
  virtual ~Nic() = default;
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  [[nodiscard]] virtual Kind kind() const noexcept = 0;
  /// Device name: "soft" or the verbs device's.
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  [[nodiscard]] virtual const Limits& limits() const noexcept = 0;
  [[nodiscard]] virtual const Capabilities& capabilities() const noexcept = 0;
  /// The GID by which peers know this NIC.
  [[nodiscard]] virtual const ibv_gid& gid() const noexcept = 0;
  [[nodiscard]] virtual ibv_context* context() noexcept = 0;
  /// The direct operations; null for a NIC that has only queues.
  [[nodiscard]] virtual const Direct* direct() const noexcept { return nullptr; }

  // Control plane. Every call: \thread any  \alloc setup. Errors besides those named: kLimit, kNoMemory, kDevice.

  [[nodiscard]] virtual Result<ibv_pd*> alloc_pd() = 0;
  /// kBusy while a QP or memory region still uses it.
  [[nodiscard]] virtual Result<void> dealloc_pd(ibv_pd* pd) = 0;

  /// Makes an arena known to the NIC, so that you can register regions inside it and, as `grant` says, peers can import
  /// them.
  /// The arena must outlive `detach`. A device does nothing and returns 0. Errors: kBadArgument for a grant that the
  /// arena's Share does not allow.
  [[nodiscard]] virtual Result<std::uint64_t> attach(const host::Arena& arena, const Grant& grant) = 0;
  /// Names the grantee of an arena that was attached for kNobody. Call it once: a grant is never widened or moved.
  [[nodiscard]] virtual Result<void> grant(std::uint64_t memory_id, const Grant& grant) = 0;
  /// kBusy while a memory region lies in it.
  [[nodiscard]] virtual Result<void> detach(std::uint64_t memory_id) = 0;

  /// Registers `length` bytes at `address` as IO virtual addresses from `iova` (the address itself in the common case).
  /// Soft NIC: peers access memory inside an attached arena directly, and remote access beyond the arena's Share is
  /// kBadArgument. Peers reach other memory through the kernel or the NIC's own thread, which is much slower, and not
  /// fit for polling. The memory must stay mapped until it is deregistered.
  [[nodiscard]] virtual Result<ibv_mr*> reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                                               int access) = 0;
  /// Revokes the keys. When it returns kOk, no well-behaved peer reads or writes the region any more. If `deadline`
  /// passes, the QPs of peers inside the region go to error, it returns kTimedOut, and the memory must not be reused
  /// until those peers' processes are gone (quarantine). It waits only for peers that were handed the memory, and not
  /// for one that has been late before: that one's stay is kTimedOut at once. With `Deadline::now()` it waits for
  /// nobody, and ends no connection: kTimedOut then means that somebody may be inside. kBusy while memory windows are
  /// bound on the region (some devices return kBadArgument).
  [[nodiscard]] virtual Result<void> dereg_mr(ibv_mr* mr, Deadline deadline) = 0;

  /// Allocates a window of type 2. Bind it with IBV_WR_BIND_MW on the QP whose peer may then use it (see `window_of`),
  /// on a region with IBV_ACCESS_MW_BIND, each time with another low byte of the key than last time (ibv_inc_rkey of
  /// `mw->rkey`, which the caller then sets). IBV_WR_LOCAL_INV, or the peer's IBV_WR_SEND_WITH_INV, ends the binding:
  /// once it has completed here, no well-behaved peer reaches the memory. The key repeats after 256 bindings, so limit
  /// how old one may get. Errors: kUnsupported (see Limits::max_mw).
  [[nodiscard]] virtual Result<ibv_mw*> alloc_mw(ibv_pd* pd) = 0;
  /// First invalidates a bound window, as dereg_mr does, also with its kTimedOut. The same for one whose invalidation
  /// was cut short by a failure of the queue pair.
  [[nodiscard]] virtual Result<void> dealloc_mw(ibv_mw* mw, Deadline deadline) = 0;
  /// A bound window in the form that the peer imports: `bind` as posted, with the key `rkey`.
  [[nodiscard]] Window window_of(std::uint32_t rkey, const ibv_mw_bind_info& bind) const noexcept;

  /// A region in the form that peers import.
  [[nodiscard]] virtual Window window_of(const ibv_mr* mr) const noexcept = 0;
  /// Makes a peer's window usable on `qp` (in RTR or later). Soft NIC: maps its memfd after checking seals and size.
  /// A device does nothing. Errors: kPeerLost, kNotAllowed (no grant), kProtocol (wrong seals or size), kOutOfRange,
  /// kTimedOut. You may call it again for the same window: imports are counted, and as many releases end it. With
  /// `Deadline::now()` it does not wait, like modify_qp: kAgain until the peer's NIC has answered; all these calls
  /// count as one import.
  [[nodiscard]] virtual Result<void> import_window(ibv_qp* qp, const Window& window, Deadline deadline) = 0;
  [[nodiscard]] virtual Result<void> release_window(ibv_qp* qp, const Window& window) = 0;

  [[nodiscard]] virtual Result<ibv_comp_channel*> create_channel() = 0;
  [[nodiscard]] virtual Result<void> destroy_channel(ibv_comp_channel* channel) = 0;
  /// Waits for a completion event on a channel and takes it: as ibv_get_cq_event and ibv_ack_cq_events in one.
  /// Before, arm with ibv_req_notify_cq and poll once more. An event may be spurious. kTimedOut when the deadline
  /// passes.
  [[nodiscard]] virtual Result<ibv_cq*> wait(ibv_comp_channel* channel, Deadline deadline) = 0;
  /// Makes a `wait` on the channel return now with nullptr; from any thread, async-signal-safe. Remembered until a
  /// `wait` takes it.
  virtual void wake(ibv_comp_channel* channel) noexcept = 0;

  [[nodiscard]] virtual Result<ibv_cq*> create_cq(std::uint32_t cqe, ibv_comp_channel* channel) = 0;
  /// kBusy while a QP uses it.
  [[nodiscard]] virtual Result<void> destroy_cq(ibv_cq* cq) = 0;

  /// Makes a shared receive queue for several QPs (QpOptions::srq). Post to it with ibv_post_srq_recv, with keys of
  /// `pd`. It holds `max_wr` receives of up to `max_sge` segments. Errors: kBadArgument (limits).
  [[nodiscard]] virtual Result<ibv_srq*> create_srq(ibv_pd* pd, std::uint32_t max_wr, std::uint32_t max_sge) = 0;
  /// Posted receives vanish with it. kBusy while a QP uses it.
  [[nodiscard]] virtual Result<void> destroy_srq(ibv_srq* srq) = 0;

  /// Updates `options` to the QP's real limits, as verbs does.
  [[nodiscard]] virtual Result<ibv_qp*> create_qp(ibv_pd* pd, QpOptions& options) = 0;
  /// As ibv_modify_qp: the same attributes and mask, checked alike. Going to RTR contacts the peer's NIC on the soft
  /// NIC (within `deadline`). Errors: kBadArgument (order or attributes), kPeerLost, kOtherHost, kOtherNamespace,
  /// kNotAllowed, kTimedOut.
  /// With `Deadline::now()` it does not wait: kAgain means that the peer's NIC has not answered yet, and the same call
  /// continues from there (see `notify_progress`); meanwhile the queue pair is in INIT or in RTR. A call with other
  /// arguments gives that attempt up and begins a new one; RESET and ERR only give it up. A device never returns
  /// kAgain.
  [[nodiscard]] virtual Result<void> modify_qp(ibv_qp* qp, const ibv_qp_attr& attr, int mask, Deadline deadline) = 0;
  /// From now on the NIC signals `eventfd` whenever a call that returned kAgain may make progress, and sometimes
  /// without a reason. The caller owns it, and passes -1 before closing it. A NIC has one: the last one given. \thread
  /// any
  virtual void notify_progress(int eventfd) noexcept { static_cast<void>(eventfd); }
  /// The state as the NIC sees it, which an error may have changed.
  [[nodiscard]] virtual ibv_qp_state qp_state(const ibv_qp* qp) const noexcept = 0;
  /// Why the QP is in error: kOk while it is not; kPeerLost when the peer's process or link is gone. \thread any
  [[nodiscard]] virtual Status qp_failure(const ibv_qp* qp) const noexcept = 0;
  /// For callers that learn in another way that the peer has left: moves the QP to error with kPeerLost, flushes posted
  /// requests, and wakes sleepers. The soft NIC first receives what the peer has sent. Does nothing if the QP has
  /// failed before.
  /// \thread any
  virtual void lose_peer(const ibv_qp* qp) noexcept = 0;
  /// Its completions vanish with it, as on a device. Releases the peers' windows that were imported for it.
  [[nodiscard]] virtual Result<void> destroy_qp(ibv_qp* qp) = 0;
  /// Address to give to the peer; psn is the caller's choice.
  [[nodiscard]] virtual QpAddress address_of(const ibv_qp* qp) const noexcept = 0;
  // Authenticating a handshake: TCP does not tell who has sent its bytes, and the GID in them is no secret. The
  // software NIC can ask the process that owns the GID, over a socket on which the kernel tells each end who the other
  // one is. So each side attests what it sends, and inquires about what it receives before it acts on it.

  /// Most bytes of one attestation.
  static constexpr std::size_t kMaxAttestedBytes = 2048;
  /// From now on the NIC answers yes to the first inquiry about exactly these bytes. Returns a number for `retract`, 0
  /// on a device. Errors: kTooLong.
  [[nodiscard]] virtual Result<std::uint64_t> attest(std::span<const std::byte> sent) {
    static_cast<void>(sent);
    return 0;
  }
  virtual void retract(std::uint64_t attestation) noexcept { static_cast<void>(attestation); }
  /// Asks the NIC with that GID, without waiting. Null on a device, where nobody can answer for a peer. Errors:
  /// kPeerLost (no process has that GID), kNotAllowed (a user that may not connect), kOtherHost, kOtherNamespace,
  /// kTooLong.
  [[nodiscard]] virtual Result<std::unique_ptr<Inquiry>> inquire(const ibv_gid& gid, std::span<const std::byte> sent) {
    static_cast<void>(gid);
    static_cast<void>(sent);
    return nullptr;
  }

  /// The process at the other end; kUnsupported on a device, kBadArgument before RTR.
  [[nodiscard]] virtual Result<PeerProcess> peer_of(const ibv_qp* qp) const = 0;

  /// Objects that exist, for leak checks.
  struct Objects {
    std::uint32_t pds = 0, mrs = 0, cqs = 0, qps = 0, channels = 0, arenas = 0, imports = 0, peers = 0, srqs = 0,
                  mws = 0;
    friend bool operator==(const Objects&, const Objects&) = default;
  };
  [[nodiscard]] virtual Objects objects() const = 0;

 protected:
  Nic() = default;
};

/// Bytes that this process attests as long as the object lives. Move-only.
class Attestation {
 public:
  Attestation() noexcept = default;
  /// Errors: those of Nic::attest. The NIC must outlive it.
  [[nodiscard]] static Result<Attestation> make(Nic& nic, std::span<const std::byte> sent) {
    auto number = nic.attest(sent);
    if (!number) return std::unexpected(number.error());
    return Attestation(nic, *number);
  }
  Attestation(Attestation&& other) noexcept : nic_(std::exchange(other.nic_, nullptr)), number_(other.number_) {}
  Attestation& operator=(Attestation&& other) noexcept {
    std::swap(nic_, other.nic_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~Attestation() {
    if (nic_ != nullptr) nic_->retract(number_);
  }

 private:
  Attestation(Nic& nic, std::uint64_t number) noexcept : nic_(&nic), number_(number) {}

  Nic* nic_ = nullptr;
  std::uint64_t number_ = 0;
};

/// Faults that the software NIC makes on purpose, each with a probability of 0 to 1. The same seed and the same calls
/// in one process repeat the same run, because it counts polls and ignores time.
struct ChaosOptions {
  std::uint64_t seed = 1;
  double delay = 0;   ///< Delays a work request by 1 to 16 polls.
  double pieces = 0;  ///< Delivers a READ or WRITE over 64 B in cache lines, in shuffled order, over several polls.
  double hold = 0;    ///< Holds back a completion, and those after it, for 1 to 16 polls.
  double rnr = 0;     ///< Answers a request that takes a receive with 1 to 3 RNR NAKs, which count against rnr_retry.
  double retry =
      0;  ///< Fails a work request with retry exceeded; a READ or WRITE is executed all the same half of the time.
  double fatal = 0;    ///< A work request ends with a fatal error of the QP.
  double death = 0;    ///< A work request ends as if the peer's process had died.
  double control = 0;  ///< Delays a step between control threads (connecting, a request, an answer).
  double cut = 0;      ///< A message between control threads loses its descriptors, and the conversation ends.
};

/// Opens the software NIC. `allowed_uids` are users besides this process's own whose processes may connect.
struct SoftOptions {
  std::span<const uid_t> allowed_uids{};
  std::uint32_t max_qp = 4096;   ///< 1 to 65536
  std::uint32_t max_mr = 65536;  ///< 1 to 2^22
  /// Default: the environment's VERBENA_CHAOS ("delay=0.2,hold=0.1,seed=7") and VERBENA_CHAOS_SEED.
  std::optional<ChaosOptions> chaos;
};
/// Errors: kPermission (membarrier denied), kLimit (files), kSystem, kBadArgument (an option, or VERBENA_CHAOS). Starts
/// one control thread, which sleeps unless peers come or go.
[[nodiscard]] Result<std::unique_ptr<Nic>> open_soft(const SoftOptions& options);

// Destroys an object; an error means a broken invariant of ours.
void destroy(Nic& nic, ibv_pd* pd) noexcept;
void destroy(Nic& nic, ibv_mr* mr) noexcept;
void destroy(Nic& nic, ibv_cq* cq) noexcept;
void destroy(Nic& nic, ibv_qp* qp) noexcept;
void destroy(Nic& nic, ibv_mw* mw) noexcept;
void destroy(Nic& nic, ibv_srq* srq) noexcept;
void destroy(Nic& nic, ibv_comp_channel* channel) noexcept;

template <class Object>
struct Destroyer {
  Nic* nic = nullptr;
  void operator()(Object* object) const noexcept { destroy(*nic, object); }
};

/// Move-only owner of one verbs object, which it destroys through its Nic.
template <class Object>
class Handle : public std::unique_ptr<Object, Destroyer<Object>> {
 public:
  Handle() noexcept = default;
  Handle(Nic& nic, Object* object) noexcept : Handle::unique_ptr(object, {.nic = &nic}) {}
};
using Pd = Handle<ibv_pd>;
using Mr = Handle<ibv_mr>;
using Cq = Handle<ibv_cq>;
using Mw = Handle<ibv_mw>;
using Srq = Handle<ibv_srq>;
using Qp = Handle<ibv_qp>;
using Channel = Handle<ibv_comp_channel>;

}  // namespace verbena::nic
