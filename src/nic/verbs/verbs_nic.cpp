// The control plane over libibverbs: objects, their users, queue pair states, and the device's events.
#include "nic/verbs/verbs_nic.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "nic/arguments.hpp"
#include "nic/descriptors.hpp"

#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace verbena::nic::verbs {

namespace {

constexpr unsigned kOptionalAccess = IBV_ACCESS_OPTIONAL_RANGE;

/// Functions of libibverbs return the errno, or -1 and leave it in errno.
[[nodiscard]] int cause_of(int returned) noexcept { return returned > 0 ? returned : errno; }

[[nodiscard]] Status status_of_cause(int cause) noexcept {
  switch (cause) {
    case EINVAL: return Status::kBadArgument;
    case EBUSY: return Status::kBusy;
    case EOPNOTSUPP:
    case ENOSYS: return Status::kUnsupported;
    case ENOMEM: return Status::kNoMemory;
    case EPERM:
    case EACCES: return Status::kPermission;
    case EMFILE:
    case ENFILE:
    case ENOSPC: return Status::kLimit;
    default: return Status::kDevice;
  }
}

/// For calls whose errno is all that is known.
[[nodiscard]] std::unexpected<Error> refused(const char* call, int cause, const char* what) noexcept {
  const Status status = status_of_cause(cause);
  const char* fix = status == Status::kDevice     ? "look for the driver's messages in dmesg"
                    : status == Status::kNoMemory ? "raise RLIMIT_MEMLOCK (ulimit -l unlimited), or make fewer"
                                                  : "see the device's limits (verbena-info, ibv_devinfo -v)";
  return fail(status, call, cause, "the device refused {} ({}); {}", what, std::strerror(cause), fix);
}

/// The same for the return value of a call.
[[nodiscard]] Result<void> check_done(const char* call, int returned, const char* what) noexcept {
  if (returned == 0) return {};
  return refused(call, cause_of(returned), what);
}

[[nodiscard]] std::unexpected<Error> stranger(const char* call, const char* what) noexcept {
  return fail(Status::kBadArgument, call, EINVAL, "the {} is not of this NIC, or was destroyed", what);
}

/// The entry of an object that this NIC has made.
template <class Table, class Object>
[[nodiscard]] Result<typename Table::mapped_type*> find(Table& table, Object* object, const char* call,
                                                        const char* what) noexcept {
  const auto at = table.find(object);
  if (at == table.end()) return stranger(call, what);
  return &at->second;
}

/// Takes an object out of its table and destroys it without the lock: the library waits until the event thread has
/// acknowledged what it is handling, and that thread needs the lock. If the library reuses the address meanwhile, the
/// table already has it as another object. Returns the object's entry; on failure puts it back into the table.
template <class Table, class Object>
[[nodiscard]] Result<typename Table::mapped_type> destroy_unlocked(Table& table, Object* object,
                                                                   std::unique_lock<std::mutex>& lock,
                                                                   int (*destroy)(Object*), const char* call,
                                                                   const char* what) {
  auto node = table.extract(object);
  lock.unlock();
  const Result<void> destroyed = check_done(call, destroy(object), what);
  lock.lock();
  if (destroyed) return std::move(node.mapped());
  table.insert(std::move(node));
  return std::unexpected(destroyed.error());
}

/// Bytes that this process has locked and pinned, as the kernel counts them against RLIMIT_MEMLOCK.
[[nodiscard]] std::uint64_t locked_bytes() {
  std::ifstream status("/proc/self/status");
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmLck:") || line.starts_with("VmPin:")) bytes += std::strtoull(line.c_str() + 6, nullptr, 10);
  }
  return bytes << 10;
}

[[nodiscard]] std::unexpected<Error> registration_error(std::size_t length, int cause) {
  rlimit limit{};
  if (cause == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::uint64_t locked = locked_bytes();
    if (locked + length > limit.rlim_cur) {
      return fail(
          Status::kLimit, "ibv_reg_mr", cause,
          "registering {} KiB pins them, and RLIMIT_MEMLOCK is {} KiB, of which {} are in use; raise it: ulimit "
          "-l unlimited, memlock in /etc/security/limits.conf, or LimitMEMLOCK=infinity of the systemd unit",
          length >> 10, limit.rlim_cur >> 10, locked >> 10);
    }
  }
  if (cause == EFAULT) {
    return fail(Status::kBadArgument, "ibv_reg_mr", cause,
                "the memory is not mapped, or not writable as the access asks for");
  }
  return refused("ibv_reg_mr", cause, "to register the memory");
}

}  // namespace

// Checks that no queue pair is left. The kernel releases the library's other objects with the context.
VerbsNic::~VerbsNic() {
  events_.stop();
  VERBENA_CHECK(qps_.empty());  // A NIC must outlive its queue pairs: their owners hold pointers into it.
  for (ChannelSlot* slot = channels_.load(); slot != nullptr;) delete std::exchange(slot, slot->next);
  commands_ = {};
  news_ = {};
  if (context_ != nullptr) library_.device.close_device(context_);
}

// --- protection domains and memory ------------------------------------------------------------------------------

Result<ibv_pd*> VerbsNic::alloc_pd() {
  const std::lock_guard lock(mutex_);
  ibv_pd* pd = library_.alloc_pd(context_);
  if (pd == nullptr) return refused("ibv_alloc_pd", errno, "a protection domain");
  pds_.try_emplace(pd);
  return pd;
}

Result<void> VerbsNic::dealloc_pd(ibv_pd* pd) {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(PdEntry* const entry, find(pds_, pd, "dealloc_pd", "protection domain"));
  VERBENA_TRY(check_unused("dealloc_pd", entry->users, kPdUsers));
  for (; !entry->parents.empty(); entry->parents.pop_back()) VERBENA_TRY(release_parent(entry->parents.back().pd));
  VERBENA_TRY(check_done("ibv_dealloc_pd", library_.dealloc_pd(pd), "to release the protection domain"));
  pds_.erase(pd);
  return {};
}

Result<void> VerbsNic::release_parent(ibv_pd* parent) const {
  return check_done("ibv_dealloc_pd", library_.dealloc_pd(parent), "to release a parent domain");
}

/// The protection domain for a queue pair of `recv_cq`. A parent domain with the owner's thread domain tells the
/// provider that only one thread uses it, so that it needs no lock. The plain domain if the device has no thread
/// domains.
ibv_pd* VerbsNic::domain_for(ibv_pd* pd, PdEntry& entry, ibv_cq* recv_cq) {
  ibv_td* td = cqs_.at(recv_cq).td;
  if (td == nullptr) return pd;
  for (const ParentDomain& parent : entry.parents) {
    if (parent.cq == recv_cq) return parent.pd;
  }
  ibv_pd* parent = library_.alloc_parent_domain(context_, pd, td);
  if (parent == nullptr) return pd;
  entry.parents.push_back({recv_cq, parent});
  return parent;
}

Result<std::uint64_t> VerbsNic::attach(const host::Arena& arena, const Grant& grant) {
  // A device shares no file, but a program that works here must also work on the soft NIC.
  VERBENA_TRY(check_arena(arena, grant));
  const std::lock_guard lock(mutex_);
  ++arenas_;
  return 0;
}

Result<void> VerbsNic::grant(std::uint64_t memory_id, const Grant&) {
  const std::lock_guard lock(mutex_);
  if (memory_id == 0 && arenas_ != 0) return {};
  return fail(Status::kBadArgument, "grant", 0, "no arena {} is attached", memory_id);
}

Result<void> VerbsNic::detach(std::uint64_t memory_id) {
  const std::lock_guard lock(mutex_);
  if (memory_id != 0 || arenas_ == 0) {
    return fail(Status::kBadArgument, "detach", 0, "no arena {} is attached", memory_id);
  }
  --arenas_;
  return {};
}

Result<ibv_mr*> VerbsNic::reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, int access) {
  if (length == 0 || iova + (length - 1) < iova) {
    return fail(Status::kBadArgument, "reg_mr", EINVAL, "{} bytes from {:#x} on cannot be registered", length, iova);
  }
  VERBENA_TRY(check_region_access(access));
  {
    const std::lock_guard lock(mutex_);
    VERBENA_ASSIGN(PdEntry* const entry, find(pds_, pd, "reg_mr", "protection domain"));
    ++entry->users;
  }
  // Without the lock: pinning gigabytes takes seconds.
  auto granted = static_cast<unsigned>(access);
  ibv_mr* mr = library_.reg_mr(pd, address, length, iova, granted);
  int cause = errno;
  if (mr == nullptr && (granted & kOptionalAccess) != 0 && (cause == EINVAL || cause == EOPNOTSUPP)) {
    granted &= ~kOptionalAccess;
    mr = library_.reg_mr(pd, address, length, iova, granted);
    cause = errno;
  }
  const std::lock_guard lock(mutex_);
  if (mr == nullptr) {
    --pds_.at(pd).users;
    return registration_error(length, cause);
  }
  mrs_.emplace(mr, MrEntry{pd, iova, granted});
  return mr;
}

Result<void> VerbsNic::dereg_mr(ibv_mr* mr, Deadline) {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(const MrEntry* const entry, find(mrs_, mr, "dereg_mr", "memory region"));
  // Returns once the device has dropped the keys and no access is under way.
  VERBENA_TRY(check_done("ibv_dereg_mr", library_.dereg_mr(mr), "to deregister the memory"));
  --pds_.at(entry->pd).users;
  mrs_.erase(mr);
  return {};
}

Result<ibv_mw*> VerbsNic::alloc_mw(ibv_pd* pd) {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(PdEntry* const entry, find(pds_, pd, "alloc_mw", "protection domain"));
  ibv_mw* mw = library_.alloc_mw(pd, IBV_MW_TYPE_2);
  if (mw == nullptr) return refused("ibv_alloc_mw", errno, "a memory window of type 2");
  mws_.emplace(mw, pd);
  ++entry->users;
  return mw;
}

Result<void> VerbsNic::dealloc_mw(ibv_mw* mw, Deadline) {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(ibv_pd* const* const pd, find(mws_, mw, "dealloc_mw", "memory window"));
  VERBENA_TRY(check_done("ibv_dealloc_mw", library_.dealloc_mw(mw), "to release the memory window"));
  --pds_.at(*pd).users;
  mws_.erase(mw);
  return {};
}

Window VerbsNic::window_of(const ibv_mr* mr) const noexcept {
  const std::lock_guard lock(mutex_);
  const MrEntry& entry = mrs_.find(mr)->second;
  return {.address = entry.iova, .length = mr->length, .rkey = mr->rkey, .access = entry.access, .memory_id = 0};
}

Result<void> VerbsNic::import_window(ibv_qp* qp, const Window& window, Deadline) {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(QpEntry* const entry, find(qps_, qp, "import_window", "queue pair"));
  ++entry->imports[window.rkey];
  return {};
}

Result<void> VerbsNic::release_window(ibv_qp* qp, const Window& window) {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(QpEntry* const entry, find(qps_, qp, "release_window", "queue pair"));
  return take_import(entry->imports, window.rkey);
}

// --- channels ---------------------------------------------------------------------------------------------------

/// Takes no lock and allocates nothing, so a signal handler may call it. The slot of an existing channel does not
/// change.
VerbsNic::ChannelSlot* VerbsNic::slot_of(const ibv_comp_channel* channel) const noexcept {
  for (ChannelSlot* slot = channels_.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
    if (slot->channel.load(std::memory_order_acquire) == channel) return slot;
  }
  return nullptr;
}

Result<ibv_comp_channel*> VerbsNic::create_channel() {
  constexpr const char* kWhat = "making a completion channel";
  VERBENA_ASSIGN(Fd wake, make_eventfd());
  const std::lock_guard lock(mutex_);
  std::unique_ptr<ibv_comp_channel, int (*)(ibv_comp_channel*)> channel(library_.create_comp_channel(context_),
                                                                        library_.destroy_comp_channel);
  if (channel == nullptr) return refused("ibv_create_comp_channel", errno, "a completion channel");
  VERBENA_TRY(set_non_blocking(channel->fd, kWhat));
  VERBENA_ASSIGN(Fd epoll, make_epoll({channel->fd, wake.get()}, kWhat));
  ChannelSlot* slot = slot_of(nullptr);
  if (slot == nullptr) {
    slot = new ChannelSlot();
    slot->next = channels_.load(std::memory_order_relaxed);
    channels_.store(slot, std::memory_order_release);
  }
  slot->epoll = std::move(epoll);
  slot->wake = std::move(wake);
  slot->cqs = 0;
  slot->channel.store(channel.get(), std::memory_order_release);
  ++channel_count_;
  return channel.release();
}

Result<void> VerbsNic::destroy_channel(ibv_comp_channel* channel) {
  const std::lock_guard lock(mutex_);
  ChannelSlot* slot = channel != nullptr ? slot_of(channel) : nullptr;
  if (slot == nullptr) return stranger("destroy_channel", "completion channel");
  VERBENA_TRY(check_unused("destroy_channel", slot->cqs, kChannelUsers));
  // Before the library closes the descriptor, whose number may be reused.
  Fd epoll = std::exchange(slot->epoll, Fd());
  if (const int failed = library_.destroy_comp_channel(channel); failed != 0) {
    slot->epoll = std::move(epoll);
    return refused("ibv_destroy_comp_channel", cause_of(failed), "to release the completion channel");
  }
  slot->channel.store(nullptr, std::memory_order_release);
  slot->wake.reset();
  --channel_count_;
  return {};
}

void VerbsNic::wake(ibv_comp_channel* channel) noexcept {
  if (const ChannelSlot* slot = slot_of(channel); slot != nullptr) signal_eventfd(slot->wake.get());
}

Result<ibv_cq*> VerbsNic::wait(ibv_comp_channel* channel, Deadline deadline) {
  const ChannelSlot* slot = channel != nullptr ? slot_of(channel) : nullptr;
  if (slot == nullptr) return stranger("wait", "completion channel");
  for (;;) {
    epoll_event event{};
    const int ready = ::epoll_wait(slot->epoll.get(), &event, 1, deadline.left_ms());
    if (ready < 0 && errno != EINTR) return fail_system("epoll_wait", errno, "waiting for a completion");
    if (ready > 0 && event.data.fd == slot->wake.get()) {
      if (drain_eventfd(slot->wake.get())) return nullptr;
    } else if (ready > 0) {
      ibv_cq* cq = nullptr;
      if (library_.get_cq_event(channel, &cq) == 0) {
        // Acknowledges at once, because ibv_destroy_cq waits for it. This takes a mutex of the library, which a sleeper
        // can afford.
        library_.ack_cq_events(cq, 1);
        return cq;
      }
      if (errno != EAGAIN && errno != EINTR) {
        return fail(Status::kDevice, "ibv_get_cq_event", errno, "{} reports no more completions; it is gone ({})",
                    name(), std::strerror(errno));
      }
    }
    if (deadline.passed()) return fail(Status::kTimedOut, "wait", ETIMEDOUT, "no completion event before the deadline");
  }
}

// --- completion queues and shared receive queues ----------------------------------------------------------------

Result<ibv_cq*> VerbsNic::create_cq(std::uint32_t cqe, ibv_comp_channel* channel) {
  VERBENA_TRY(check_cqe(cqe, limits_));
  const std::lock_guard lock(mutex_);
  ChannelSlot* slot = nullptr;
  if (channel != nullptr && (slot = slot_of(channel)) == nullptr) return stranger("create_cq", "completion channel");
  ibv_cq* cq = library_.create_cq(context_, static_cast<int>(cqe), channel);
  if (cq == nullptr) return refused("ibv_create_cq", errno, "a completion queue");
  // Optional, because a device has few: without one the provider locks.
  ibv_td* td = facts_.thread_domains ? library_.alloc_td(context_) : nullptr;
  cqs_.emplace(cq, CqEntry{channel, td});
  if (slot != nullptr) ++slot->cqs;
  return cq;
}

Result<void> VerbsNic::destroy_cq(ibv_cq* cq) {
  std::unique_lock lock(mutex_);
  VERBENA_ASSIGN(CqEntry* const entry, find(cqs_, cq, "destroy_cq", "completion queue"));
  VERBENA_TRY(check_unused("destroy_cq", entry->users, kCqUsers));
  for (auto& [pd, domain] : pds_) {
    const auto parent = std::ranges::find(domain.parents, cq, &ParentDomain::cq);
    if (parent == domain.parents.end()) continue;
    VERBENA_TRY(release_parent(parent->pd));
    domain.parents.erase(parent);
  }
  if (entry->td != nullptr)
    VERBENA_TRY(check_done("ibv_dealloc_td", library_.dealloc_td(entry->td), "to release a thread domain"));
  entry->td = nullptr;
  VERBENA_ASSIGN(const CqEntry gone, destroy_unlocked(cqs_, cq, lock, library_.destroy_cq, "ibv_destroy_cq",
                                                      "to release the completion queue"));
  if (gone.channel != nullptr) --slot_of(gone.channel)->cqs;
  return {};
}

Result<ibv_srq*> VerbsNic::create_srq(ibv_pd* pd, std::uint32_t max_wr, std::uint32_t max_sge) {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(PdEntry* const entry, find(pds_, pd, "create_srq", "protection domain"));
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = max_wr;
  attr.attr.max_sge = max_sge;
  ibv_srq* srq = library_.create_srq(pd, &attr);
  if (srq == nullptr) return refused("ibv_create_srq", errno, "a shared receive queue");
  srqs_.emplace(srq, SrqEntry{pd});
  ++entry->users;
  return srq;
}

Result<void> VerbsNic::destroy_srq(ibv_srq* srq) {
  std::unique_lock lock(mutex_);
  VERBENA_ASSIGN(const SrqEntry* const entry, find(srqs_, srq, "destroy_srq", "shared receive queue"));
  VERBENA_TRY(check_unused("destroy_srq", entry->users, kSrqUsers));
  VERBENA_ASSIGN(const SrqEntry gone, destroy_unlocked(srqs_, srq, lock, library_.destroy_srq, "ibv_destroy_srq",
                                                       "to release the shared receive queue"));
  --pds_.at(gone.pd).users;
  return {};
}

// --- queue pairs ------------------------------------------------------------------------------------------------

Result<ibv_qp*> VerbsNic::create_qp(ibv_pd* pd, QpOptions& options) {
  if (options.send_cq == nullptr || options.recv_cq == nullptr) {
    return fail(Status::kBadArgument, "create_qp", EINVAL, "a queue pair needs a send and a receive completion queue");
  }
  if (options.max_send_wr > limits_.max_qp_wr || options.max_recv_wr > limits_.max_qp_wr ||
      options.max_send_sge > limits_.max_sge || options.max_recv_sge > limits_.max_sge ||
      options.max_inline > limits_.max_inline) {
    return fail(Status::kBadArgument, "create_qp", EINVAL,
                "send queue {}, receive queue {} (to {} each), SGEs {} and {} (to {}), inline {} (to {})",
                options.max_send_wr, options.max_recv_wr, limits_.max_qp_wr, options.max_send_sge, options.max_recv_sge,
                limits_.max_sge, options.max_inline, limits_.max_inline);
  }
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(PdEntry* const entry, find(pds_, pd, "create_qp", "protection domain"));
  VERBENA_ASSIGN(CqEntry* const send_cq, find(cqs_, options.send_cq, "create_qp", "completion queue"));
  VERBENA_ASSIGN(CqEntry* const recv_cq, find(cqs_, options.recv_cq, "create_qp", "completion queue"));
  const auto srq = srqs_.find(options.srq);
  if (options.srq != nullptr && srq == srqs_.end()) return stranger("create_qp", "shared receive queue");
  ibv_qp_init_attr attr{};
  attr.send_cq = options.send_cq;
  attr.recv_cq = options.recv_cq;
  attr.srq = options.srq;
  attr.qp_type = options.type;
  attr.sq_sig_all = options.signal_all ? 1 : 0;
  attr.cap = {.max_send_wr = options.max_send_wr,
              .max_recv_wr = options.max_recv_wr,
              .max_send_sge = options.max_send_sge,
              .max_recv_sge = options.max_recv_sge,
              .max_inline_data = options.max_inline};
  ibv_qp* qp = library_.create_qp(domain_for(pd, *entry, options.recv_cq), &attr);
  if (qp == nullptr) return refused("ibv_create_qp", errno, "a queue pair");
  qps_.emplace(qp, QpEntry{pd, options.send_cq, options.recv_cq, options.srq});
  ++entry->users;
  ++send_cq->users;
  ++recv_cq->users;
  if (options.srq != nullptr) ++srq->second.users;
  options.max_send_wr = attr.cap.max_send_wr;
  options.max_recv_wr = attr.cap.max_recv_wr;
  options.max_send_sge = attr.cap.max_send_sge;
  options.max_recv_sge = attr.cap.max_recv_sge;
  options.max_inline = attr.cap.max_inline_data;
  return qp;
}

/// Fills in this NIC's port and GID if the caller gives port 0.
void VerbsNic::complete_path(ibv_qp_attr& attr, int mask) const noexcept {
  if ((mask & IBV_QP_PORT) != 0 && attr.port_num == 0) attr.port_num = facts_.port;
  ibv_ah_attr& path = attr.ah_attr;
  if ((mask & IBV_QP_AV) == 0 || path.port_num != 0) return;
  path.port_num = facts_.port;
  path.grh.sgid_index = static_cast<std::uint8_t>(facts_.gid.index);
  // A LID reaches all of an InfiniBand subnet and nothing else; on Ethernet there are no LIDs.
  const bool other_subnet = path.grh.dgid.global.subnet_prefix != facts_.gid.gid.global.subnet_prefix;
  path.is_global = facts_.link_layer == LinkLayer::kEthernet || facts_.gid.grh || needs_grh_ || other_subnet ? 1 : 0;
}

Result<void> VerbsNic::modify_qp(ibv_qp* qp, const ibv_qp_attr& attr, int mask, Deadline) {
  ibv_qp_attr complete = attr;
  complete_path(complete, mask);
  // Without the lock: on Ethernet, RTR resolves the peer's address, which can take a second.
  if (const int failed = library_.modify_qp(qp, &complete, mask); failed != 0) {
    const int cause = cause_of(failed);
    switch (cause) {
      case EINVAL:
        return fail(Status::kBadArgument, "ibv_modify_qp", cause,
                    "the device refused the attributes {:#x} (IBV_QP_* bits) for state {}: the order is RESET, INIT, "
                    "RTR, RTS, each with all of its attributes and no others, and the peer's GID must be of this "
                    "GID's kind ({})",
                    mask, static_cast<int>(attr.qp_state), to_string(facts_.gid.type));
      case ETIMEDOUT:
        return fail(Status::kTimedOut, "ibv_modify_qp", cause,
                    "the peer's address was not resolved in time; is the peer's interface up and in this network?");
      case ENETUNREACH:
      case EHOSTUNREACH:
        return fail(Status::kPeerLost, "ibv_modify_qp", cause,
                    "there is no route from {} to the peer's address; choose a GID of the peer's network",
                    gid_text(facts_.gid.gid).data());
      default: return refused("ibv_modify_qp", cause, "to change the queue pair's state");
    }
  }
  if ((mask & IBV_QP_STATE) == 0) return {};
  const std::lock_guard lock(mutex_);
  VERBENA_ASSIGN(QpEntry* const entry, find(qps_, qp, "modify_qp", "queue pair"));
  entry->state = attr.qp_state;
  if (attr.qp_state == IBV_QPS_RESET) entry->failure = Status::kOk;
  if (attr.qp_state == IBV_QPS_ERR && entry->failure == Status::kOk) entry->failure = Status::kClosed;
  return {};
}

ibv_qp_state VerbsNic::qp_state(const ibv_qp* qp) const noexcept {
  ibv_qp_attr attr{};
  // The library's signature has no const; the query changes nothing that a user sees.
  if (library_.query_qp(const_cast<ibv_qp*>(qp), &attr, IBV_QP_STATE) != 0) return IBV_QPS_ERR;
  return attr.qp_state;
}

Status VerbsNic::qp_failure(const ibv_qp* qp) const noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto at = qps_.find(qp);
    if (at != qps_.end() && at->second.failure != Status::kOk) return at->second.failure;
  }
  // Only the completion that moved it to error tells why.
  const ibv_qp_state state = qp_state(qp);
  return state == IBV_QPS_ERR || state == IBV_QPS_SQE ? Status::kFlushed : Status::kOk;
}

Result<void> VerbsNic::destroy_qp(ibv_qp* qp) {
  std::unique_lock lock(mutex_);
  if (!qps_.contains(qp)) return stranger("destroy_qp", "queue pair");
  VERBENA_ASSIGN(const QpEntry gone,
                 destroy_unlocked(qps_, qp, lock, library_.destroy_qp, "ibv_destroy_qp", "to release the queue pair"));
  --pds_.at(gone.pd).users;
  --cqs_.at(gone.send_cq).users;
  --cqs_.at(gone.recv_cq).users;
  if (gone.srq != nullptr) --srqs_.at(gone.srq).users;
  return {};
}

QpAddress VerbsNic::address_of(const ibv_qp* qp) const noexcept {
  QpAddress address;
  address.gid = facts_.gid.gid;
  address.qp_num = qp->qp_num;
  address.lid = lid_;
  address.mtu = static_cast<std::uint8_t>(facts_.mtu);
  address.max_rd_atomic = static_cast<std::uint8_t>(limits_.max_rd_atomic);
  address.network = facts_.network;
  return address;
}

Result<PeerProcess> VerbsNic::peer_of(const ibv_qp*) const {
  return fail(Status::kUnsupported, "peer_of", EOPNOTSUPP,
              "no kernel knows the process at the other end of a wire: only the soft NIC knows its peers");
}

Nic::Objects VerbsNic::objects() const {
  const std::lock_guard lock(mutex_);
  const auto count = [](const auto& table) { return static_cast<std::uint32_t>(table.size()); };
  Objects objects{.pds = count(pds_),
                  .mrs = count(mrs_),
                  .cqs = count(cqs_),
                  .qps = count(qps_),
                  .channels = channel_count_,
                  .arenas = arenas_,
                  .srqs = count(srqs_),
                  .mws = count(mws_)};
  for (const auto& [qp, entry] : qps_) objects.imports += count(entry.imports);
  return objects;
}

// --- asynchronous events: the event thread ----------------------------------------------------------------------

bool VerbsNic::take_event() noexcept {
  ibv_async_event event{};
  if (library_.device.get_async_event(context_, &event) != 0) {
    if (errno == EAGAIN || errno == EINTR) return true;
    fail_where(Status::kDevice, [](const ibv_qp*, const QpEntry&) { return true; });
    return false;
  }
  on_event(event);
  // Last: the library does not destroy the object that the event names before this.
  library_.device.ack_async_event(&event);
  return true;
}

void VerbsNic::on_event(const ibv_async_event& event) noexcept {
  const auto& element = event.element;
  const auto is_this = [&](const ibv_qp* qp, const QpEntry&) { return qp == element.qp; };
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL: return fail_where(Status::kDevice, is_this);
    // Responder errors: the peer's request was malformed, or not allowed.
    case IBV_EVENT_QP_REQ_ERR: return fail_where(Status::kProtocol, is_this);
    case IBV_EVENT_QP_ACCESS_ERR: return fail_where(Status::kRemoteAccess, is_this);
    case IBV_EVENT_CQ_ERR:
      return fail_where(Status::kDevice, [&](const ibv_qp*, const QpEntry& entry) {
        return entry.send_cq == element.cq || entry.recv_cq == element.cq;
      });
    case IBV_EVENT_SRQ_ERR:
      return fail_where(Status::kDevice, [&](const ibv_qp*, const QpEntry& entry) { return entry.srq == element.srq; });
    case IBV_EVENT_DEVICE_FATAL: return fail_where(Status::kDevice, [](const ibv_qp*, const QpEntry&) { return true; });
    case IBV_EVENT_PORT_ERR:
      if (element.port_num != facts_.port) return;
      // Only connected ones; others may connect when the link is up again.
      return fail_where(Status::kPeerLost, [](const ibv_qp*, const QpEntry& entry) {
        return entry.state != IBV_QPS_RESET && entry.state != IBV_QPS_INIT;
      });
    default: return;  // Events about addresses, paths and limits that end no connection.
  }
}

void VerbsNic::lose_peer(const ibv_qp* qp) noexcept {
  fail_where(Status::kPeerLost, [qp](const ibv_qp* one, const QpEntry&) { return one == qp; });
}

/// Keeps the reason, and moves the queue pairs to error, which flushes posted requests and wakes their waiters.
template <class Predicate>
void VerbsNic::fail_where(Status reason, Predicate&& predicate) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [qp, entry] : qps_) {
    if (!predicate(qp, entry) || entry.failure != Status::kOk) continue;
    entry.failure = reason;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    // A device that is gone refuses and flushes nothing, but then waiting on its channels fails.
    (void)library_.modify_qp(const_cast<ibv_qp*>(qp), &attr, IBV_QP_STATE);
  }
}

}  // namespace verbena::nic::verbs

namespace verbena::nic {

const DeviceFacts* facts_of(const Nic& nic) noexcept {
  // Asks for its type, not its kind: a test's NIC that behaves like a device has no facts.
  const auto* const device = dynamic_cast<const verbs::VerbsNic*>(&nic);
  return device != nullptr ? &device->facts() : nullptr;
}

}  // namespace verbena::nic
