#include "sim_nic.hpp"

#include "base/check.hpp"
#include "nic/arguments.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace verbena::sim {

using nic::check_unused;

namespace {

/// What a poll takes a task, where there are tasks.
constexpr Nanoseconds kPollTime = 40;
constexpr std::uint64_t kSubnet = 0x73696D0000000000;  // "sim"

[[nodiscard]] Result<void> check_mask(int mask, int needed, int optional, const char* transition) {
  if ((mask & needed) == needed && (mask & ~(needed | optional | IBV_QP_STATE)) == 0) return {};
  return fail(Status::kBadArgument, "modify_qp", EINVAL, "{} takes the attributes {:#x} and perhaps {:#x}, not {:#x}",
              transition, needed, optional, mask & ~IBV_QP_STATE);
}

enum class Look : std::uint8_t { kAtEveryPage, kAtTheEnds };
/// As a device pins memory: what is not there, or not writable as asked for, cannot be registered. A look at the ends
/// finds holes between them, but no change of protection, and leaves the pages there untouched.
[[nodiscard]] bool is_mapped(void* address, std::size_t length, int access, Look look) {
  constexpr std::uintptr_t kPageBytes = 4096;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t begin = first / kPageBytes * kPageBytes;
  const std::uintptr_t last = (first + length - 1) / kPageBytes * kPageBytes;
  const int populate = (access & IBV_ACCESS_LOCAL_WRITE) != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  const auto is_there = [&](std::uintptr_t page, std::uintptr_t bytes) {
    return ::madvise(reinterpret_cast<void*>(page), bytes, populate) == 0;
  };
  if (look == Look::kAtEveryPage) return is_there(begin, last + kPageBytes - begin);
  return ::msync(reinterpret_cast<void*>(begin), last + kPageBytes - begin, MS_ASYNC) == 0 &&
         is_there(begin, kPageBytes) && is_there(last, kPageBytes);
}

}  // namespace

// --- queue pairs in their world ---------------------------------------------------------------------------------

World& SimQp::world() const noexcept { return nic.world(); }

void SimQp::later(Nanoseconds delay, std::string_view what, std::function<void()> event) {
  world().after(delay, what, [self = weak_from_this(), then = epoch, happens = std::move(event)] {
    const std::shared_ptr<SimQp> qp = self.lock();
    if (qp != nullptr && qp->epoch == then) happens();
  });
}

void SimQp::enter_error(Status why) {
  if (now == IBV_QPS_ERR) return;
  now = state = IBV_QPS_ERR;
  failure = why;
  leave_epoch();
  world().note({qp_num, static_cast<std::uint64_t>(why)});
  world().tell("{} fails: {}", describe(*this), to_string(why));
  requester.flush();
  responder.flush();
}

std::string describe(const SimQp& qp) { return fmt::format("{}'s queue pair {}", qp.nic.process().name(), qp.qp_num); }

// --- data path --------------------------------------------------------------------------------------------------

struct SimNic::DataPath {
  static int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
    auto& qp = *static_cast<SimQp*>(base);
    for (; wr != nullptr; wr = wr->next) {
      const bool is_postable = qp.now == IBV_QPS_RTS || qp.now == IBV_QPS_ERR;
      int error = is_postable ? qp.requester.check(*wr) : EINVAL;
      if (error == 0 && qp.requester.is_full()) error = ENOMEM;
      if (qp.nic.is_dead_) error = EIO;
      if (error != 0) {
        *bad = wr;
        return error;
      }
      qp.requester.post(*wr);
    }
    return 0;
  }
  static int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& qp = *static_cast<SimQp*>(base);
    for (; wr != nullptr; wr = wr->next) {
      const bool is_wrong = wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > qp.options.max_recv_sge;
      int error = qp.now == IBV_QPS_RESET || qp.shared != nullptr || is_wrong ? EINVAL : 0;
      if (error == 0 && qp.responder.is_full()) error = ENOMEM;
      if (qp.nic.is_dead_) error = EIO;
      if (error != 0) {
        *bad = wr;
        return error;
      }
      qp.responder.post(*wr);
    }
    return 0;
  }
  static int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& srq = *static_cast<SimSrq*>(base);
    for (; wr != nullptr; wr = wr->next) {
      const bool is_wrong = wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > srq.max_sge;
      int error = is_wrong ? EINVAL : srq.unfinished == srq.max_wr ? ENOMEM : 0;
      if (srq.nic->is_dead_) error = EIO;
      if (error != 0) {
        *bad = wr;
        return error;
      }
      srq.receives.push_back({wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}});
      ++srq.unfinished;
    }
    return 0;
  }
  static int poll_cq(ibv_cq* base, int count, ibv_wc* wc) {
    auto& cq = *static_cast<SimCq*>(base);
    cq.nic->pass_time();
    return poll_now(cq, count, wc);
  }
  static int poll_now(SimCq& cq, int count, ibv_wc* wc) {
    int got = 0;
    for (; got < count && !cq.entries.empty() && !cq.nic->is_dead_; ++got) {
      const Cqe& entry = cq.entries.front();
      wc[got] = entry.wc;
      // The slots up to a completion come back when it is polled, and not before.
      if (entry.is_send) {
        entry.qp->requester.retire(entry.posted);
      } else {
        entry.qp->responder.retire();
      }
      cq.entries.pop_front();
    }
    if (Turns* const turns = cq.nic->network().turns(); turns != nullptr) {
      turns->spend(kPollTime);
      if (got == 0) turns->pause();
    }
    return got;
  }
  static int req_notify_cq(ibv_cq* base, int solicited_only) {
    auto& cq = *static_cast<SimCq*>(base);
    if (cq.channel == nullptr) return EINVAL;
    // IBTA 11.4.2.2: of two requests the wider one stays.
    if (cq.armed != SimCq::Armed::kAny) cq.armed = solicited_only != 0 ? SimCq::Armed::kSolicited : SimCq::Armed::kAny;
    return 0;
  }
};

int SimNic::poll_expecting(ibv_cq* base, int count, ibv_wc* wc, ibv_qp* expected, std::byte* message,
                           std::uint32_t& bytes) noexcept {
  auto& cq = *static_cast<SimCq*>(base);
  auto& qp = *static_cast<SimQp*>(expected);
  bytes = 0;
  cq.nic->pass_time();
  if (cq.entries.size() != 1 || cq.nic->is_dead_ || qp.now != IBV_QPS_RTS || qp.shared != nullptr)
    return DataPath::poll_now(cq, count, wc);
  const ibv_wc only = cq.entries.front().wc;
  const Receive receive = cq.entries.front().receive;
  const bool is_of_it = cq.entries.front().qp == &qp && !cq.entries.front().is_send;
  const bool is_message = only.status == IBV_WC_SUCCESS && only.opcode == IBV_WC_RECV && only.wc_flags == 0;
  const bool is_short = only.byte_len != 0 && only.byte_len <= nic::Direct::kMostTaken;
  // As on the software NIC: of a message in more than one segment, its parts would have to be put together.
  const bool is_whole = !receive.sges.empty() && only.byte_len <= receive.sges.front().length;
  const std::byte* const from = is_of_it && is_whole ? qp.nic.keys().local(qp.pd, receive.sges.front(), 0) : nullptr;
  if (!is_message || !is_short || from == nullptr) return DataPath::poll_now(cq, count, wc);
  std::memcpy(message, from, only.byte_len);
  bytes = only.byte_len;
  cq.entries.pop_front();
  qp.responder.post_again(receive);
  if (Turns* const turns = qp.nic.network().turns()) turns->spend(kPollTime);
  return 0;
}

void SimNic::pass_time() {
  VERBENA_CHECK(process_.state() != Process::State::kStopped);
  // Long enough for a timeout to come within thousands of polls, and short enough for nobody to miss it by a few.
  constexpr Nanoseconds kPoll = 2000;
  if (network().options().polls_pass_time && network().turns() == nullptr) world().turn(kPoll);
}

void SimNic::push(SimCq& cq, const Cqe& entry, bool is_solicited) {
  const bool is_failure = entry.wc.status != IBV_WC_SUCCESS;
  world().note({entry.wc.qp_num, entry.wc.wr_id, static_cast<std::uint64_t>(entry.wc.status), entry.wc.byte_len});
  if (cq.is_overrun || cq.entries.size() == static_cast<std::size_t>(cq.cqe)) {
    if (std::exchange(cq.is_overrun, true)) return;
    world().tell("a completion queue of {} overruns", process_.name());
    for (const auto& [number, qp] : qps_) {
      if (qp->scq == &cq || qp->rcq == &cq) qp->enter_error(Status::kDevice);
    }
    return;
  }
  cq.entries.push_back(entry);
  // IBTA 11.4.2.2: a failure counts as solicited.
  const bool is_event =
      cq.armed == SimCq::Armed::kAny || (cq.armed == SimCq::Armed::kSolicited && (is_solicited || is_failure));
  if (!is_event) return;
  cq.armed = SimCq::Armed::kNo;
  cq.is_due = true;
  network().wake(cq.channel);
}

void SimNic::take_message(SimQp& to, std::shared_ptr<const Message> message) {
  to.responder.on_message(std::move(message));
}
void SimNic::take_answer(SimQp& to, std::shared_ptr<const Answer> answer) {
  if (to.now == IBV_QPS_RTS) to.requester.on_answer(answer);
}

// --- the NIC ----------------------------------------------------------------------------------------------------

SimNic::SimNic(Process& process, std::shared_ptr<void> life)
    : process_(process), life_(std::move(life)), keys_(process.network()) {
  limits_ = {.max_qp = 65536,
             .max_cq = 65536,
             .max_mr = 1U << 20,
             .max_pd = 65536,
             .max_mw = 65536,
             .max_srq = 1024,
             .max_srq_wr = 16384,
             .max_qp_wr = 16384,
             .max_cqe = 1U << 20,
             .max_sge = 16,
             .max_inline = 1024,
             .max_rd_atomic = 16,
             .max_message = 1U << 30};
  // A port of the process's host, which outlives the process.
  gid_.global.subnet_prefix = kSubnet;
  gid_.global.interface_id = process.number();
  std::strncpy(device_.name, "verbena-sim", sizeof device_.name - 1);
  verbs_.sz = sizeof verbs_;
  verbs_.context.device = &device_;
  verbs_.context.cmd_fd = -1;
  verbs_.context.async_fd = -1;
  verbs_.context.num_comp_vectors = 1;
  verbs_.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  verbs_.context.ops.post_send = &DataPath::post_send;
  verbs_.context.ops.post_recv = &DataPath::post_recv;
  verbs_.context.ops.poll_cq = &DataPath::poll_cq;
  verbs_.context.ops.req_notify_cq = &DataPath::req_notify_cq;
  verbs_.context.ops.post_srq_recv = &DataPath::post_srq_recv;
  VERBENA_CHECK(network().find(gid_) == nullptr);
  process.join(*this);
  network().join(*this);
}

SimNic::~SimNic() {
  // Of a dead process nobody gives anything back.
  if (!is_dead_ && objects_ != Objects{}) network().count_leak();
  if (!is_dead_) network().leave(*this);
  process_.leave(*this);
}

void SimNic::die() {
  is_dead_ = true;
  network().leave(*this);
  for (const auto& [number, qp] : qps_) qp->leave_epoch();
}

SimQp* SimNic::find(std::uint32_t qp_num) const noexcept {
  const auto at = qps_.find(qp_num);
  return at == qps_.end() ? nullptr : at->second.get();
}

Result<ibv_pd*> SimNic::alloc_pd() {
  auto* pd = new SimPd();
  pd->context = context();
  ++objects_.pds;
  return pd;
}

Result<void> SimNic::dealloc_pd(ibv_pd* base) {
  auto* pd = static_cast<SimPd*>(base);
  VERBENA_TRY(check_unused("dealloc_pd", pd->users, nic::kPdUsers));
  delete pd;
  --objects_.pds;
  return {};
}

Result<std::uint64_t> SimNic::attach(const host::Arena& arena, const nic::Grant& grant) {
  VERBENA_TRY(nic::check_arena(arena, grant));
  ++objects_.arenas;
  return 0;
}

Result<void> SimNic::grant(std::uint64_t memory_id, const nic::Grant&) {
  if (memory_id == 0 && objects_.arenas != 0) return {};
  return fail(Status::kBadArgument, "grant", 0, "no arena {} is attached", memory_id);
}

Result<void> SimNic::detach(std::uint64_t memory_id) {
  if (memory_id != 0 || objects_.arenas == 0) {
    return fail(Status::kBadArgument, "detach", 0, "no arena {} is attached", memory_id);
  }
  --objects_.arenas;
  return {};
}

// --- regions and windows ----------------------------------------------------------------------------------------

Result<ibv_mr*> SimNic::reg_mr(ibv_pd* base, void* address, std::size_t length, std::uint64_t iova, int access) {
  // Whole systems register far more than they touch, in each of their runs.
  const Look look = network().turns() != nullptr ? Look::kAtTheEnds : Look::kAtEveryPage;
  if (length == 0 || iova + (length - 1) < iova || !is_mapped(address, length, access, look)) {
    return fail(Status::kBadArgument, "reg_mr", EINVAL, "{} bytes from {:#x} on cannot be registered", length, iova);
  }
  VERBENA_TRY(nic::check_region_access(access));
  auto* pd = static_cast<SimPd*>(base);
  auto* mr = new SimMr();
  const std::uint32_t key = keys_.add({.pd = pd,
                                       .iova = iova,
                                       .length = length,
                                       .base = static_cast<std::byte*>(address),
                                       .access = static_cast<std::uint32_t>(access)},
                                      static_cast<std::uint8_t>(world().random().next()));
  mr->context = context();
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->handle = KeyTable::index_of(key);
  mr->lkey = key;
  mr->rkey = key | KeyTable::kRemoteBit;
  mr->iova = iova;
  mr->access = static_cast<std::uint32_t>(access);
  ++pd->users;
  ++objects_.mrs;
  return mr;
}

Result<void> SimNic::dereg_mr(ibv_mr* base, Deadline) {
  auto* mr = static_cast<SimMr*>(base);
  VERBENA_TRY(check_unused("dereg_mr", keys_.at(mr->handle).windows,
                           "memory windows are bound on the region: invalidate them first"));
  // Every piece looks its key up, so nobody is inside.
  keys_.remove(mr->handle);
  --static_cast<SimPd*>(mr->pd)->users;
  delete mr;
  --objects_.mrs;
  return {};
}

Result<ibv_mw*> SimNic::alloc_mw(ibv_pd* base) {
  auto* pd = static_cast<SimPd*>(base);
  auto* mw = new SimMw();
  const std::uint32_t key =
      keys_.add({.pd = pd, .is_window = true}, static_cast<std::uint8_t>(world().random().next()));
  mw->context = context();
  mw->pd = pd;
  mw->type = IBV_MW_TYPE_2;
  mw->handle = KeyTable::index_of(key);
  mw->rkey = key | KeyTable::kRemoteBit;
  ++pd->users;
  ++objects_.mws;
  return mw;
}

Result<void> SimNic::dealloc_mw(ibv_mw* base, Deadline) {
  auto* mw = static_cast<SimMw*>(base);
  keys_.invalidate(mw->handle);
  keys_.remove(mw->handle);
  --static_cast<SimPd*>(mw->pd)->users;
  delete mw;
  --objects_.mws;
  return {};
}

nic::Window SimNic::window_of(const ibv_mr* base) const noexcept {
  const auto& mr = *static_cast<const SimMr*>(base);
  return {.address = mr.iova, .length = mr.length, .rkey = mr.rkey, .access = mr.access, .memory_id = 0};
}

Result<void> SimNic::import_window(ibv_qp* base, const nic::Window& window, Deadline) {
  auto& qp = *static_cast<SimQp*>(base);
  if (qp.imports[window.rkey]++ == 0) ++objects_.imports;
  return {};
}

Result<void> SimNic::release_window(ibv_qp* base, const nic::Window& window) {
  auto& qp = *static_cast<SimQp*>(base);
  const std::size_t before = qp.imports.size();
  VERBENA_TRY(nic::take_import(qp.imports, window.rkey));
  objects_.imports -= static_cast<std::uint32_t>(before - qp.imports.size());
  return {};
}

// --- completion queues ------------------------------------------------------------------------------------------

Result<ibv_comp_channel*> SimNic::create_channel() {
  auto* channel = new SimChannel();
  channel->context = context();
  channel->fd = -1;
  ++objects_.channels;
  return channel;
}

Result<void> SimNic::destroy_channel(ibv_comp_channel* base) {
  auto* channel = static_cast<SimChannel*>(base);
  VERBENA_TRY(check_unused("destroy_channel", channel->cqs.size(), nic::kChannelUsers));
  delete channel;
  --objects_.channels;
  return {};
}

Result<ibv_cq*> SimNic::wait(ibv_comp_channel* base, Deadline deadline) {
  auto& channel = *static_cast<SimChannel*>(base);
  VERBENA_CHECK(process_.state() != Process::State::kStopped);
  const auto left = static_cast<Nanoseconds>(deadline.left().count());
  const Nanoseconds until = deadline.is_never() ? ~Nanoseconds{0} : world().now() + left;
  for (;;) {
    if (std::exchange(channel.is_woken, false)) return nullptr;
    for (SimCq* cq : channel.cqs) {
      if (std::exchange(cq->is_due, false)) return cq;
    }
    if (Turns* const turns = network().turns(); turns != nullptr) {
      if (!turns->sleep(base, until)) break;
      continue;
    }
    if (is_dead_ || world().next_due(~Nanoseconds{0}) >= until) break;
    (void)world().step();
  }
  if (network().turns() == nullptr && until > world().now() && until != ~Nanoseconds{0})
    world().run_for(until - world().now());
  return fail(Status::kTimedOut, "wait", ETIMEDOUT, "no completion event before the deadline");
}

void SimNic::wake(ibv_comp_channel* channel) noexcept {
  static_cast<SimChannel*>(channel)->is_woken = true;
  network().wake(channel);
}

Result<ibv_cq*> SimNic::create_cq(std::uint32_t cqe, ibv_comp_channel* channel) {
  VERBENA_TRY(nic::check_cqe(cqe, limits_));
  auto* cq = new SimCq();
  cq->context = context();
  cq->channel = channel;
  cq->cqe = static_cast<int>(cqe);
  cq->nic = this;
  if (channel != nullptr) static_cast<SimChannel*>(channel)->cqs.push_back(cq);
  ++objects_.cqs;
  return cq;
}

Result<void> SimNic::destroy_cq(ibv_cq* base) {
  auto* cq = static_cast<SimCq*>(base);
  VERBENA_TRY(check_unused("destroy_cq", cq->users, nic::kCqUsers));
  if (cq->channel != nullptr) std::erase(static_cast<SimChannel*>(cq->channel)->cqs, cq);
  delete cq;
  --objects_.cqs;
  return {};
}

Result<ibv_srq*> SimNic::create_srq(ibv_pd* base, std::uint32_t max_wr, std::uint32_t max_sge) {
  if (max_wr == 0 || max_wr > limits_.max_srq_wr || max_sge > limits_.max_sge) {
    return fail(Status::kBadArgument, "create_srq", EINVAL, "{} receives (1 to {}) of {} segments (to {})", max_wr,
                limits_.max_srq_wr, max_sge, limits_.max_sge);
  }
  auto* srq = new SimSrq();
  srq->context = context();
  srq->pd = base;
  srq->nic = this;
  srq->max_wr = max_wr;
  srq->max_sge = max_sge;
  ++static_cast<SimPd*>(base)->users;
  ++objects_.srqs;
  return srq;
}

Result<void> SimNic::destroy_srq(ibv_srq* base) {
  auto* srq = static_cast<SimSrq*>(base);
  VERBENA_TRY(check_unused("destroy_srq", srq->users, nic::kSrqUsers));
  --static_cast<SimPd*>(srq->pd)->users;
  delete srq;
  --objects_.srqs;
  return {};
}

// --- queue pairs ------------------------------------------------------------------------------------------------

Result<ibv_qp*> SimNic::create_qp(ibv_pd* base, nic::QpOptions& options) {
  if (options.type != IBV_QPT_RC && options.type != IBV_QPT_UC) {
    return fail(Status::kUnsupported, "create_qp", EOPNOTSUPP, "the simulated NIC has RC and UC queue pairs");
  }
  if (options.send_cq == nullptr || options.recv_cq == nullptr || options.max_send_wr > limits_.max_qp_wr ||
      options.max_recv_wr > limits_.max_qp_wr || options.max_send_sge > limits_.max_sge ||
      options.max_recv_sge > limits_.max_sge || options.max_inline > limits_.max_inline) {
    return fail(Status::kBadArgument, "create_qp", EINVAL, "a completion queue is missing, or a limit is passed");
  }
  const auto qp = std::make_shared<SimQp>(*this, options);
  qp->context = context();
  qp->pd = base;
  qp->send_cq = options.send_cq;
  qp->recv_cq = options.recv_cq;
  qp->srq = options.srq;
  qp->qp_type = options.type;
  qp->state = IBV_QPS_RESET;
  qp->qp_num = qp->handle = process_.next_qp_number();
  qp->scq = static_cast<SimCq*>(options.send_cq);
  qp->rcq = static_cast<SimCq*>(options.recv_cq);
  qp->shared = static_cast<SimSrq*>(options.srq);
  ++qp->scq->users;
  ++qp->rcq->users;
  if (qp->shared != nullptr) ++qp->shared->users;
  ++static_cast<SimPd*>(base)->users;
  ++objects_.qps;
  qps_[qp->qp_num] = qp;
  return qp.get();
}

/// What was posted and completed is forgotten.
void SimNic::reset(SimQp& qp) {
  qp.leave_epoch();
  qp.requester.reset();
  qp.responder.reset();
  keys_.invalidate_all(qp);
  objects_.imports -= static_cast<std::uint32_t>(qp.imports.size());
  qp.imports.clear();
  for (SimCq* cq : {qp.scq, qp.rcq}) {
    std::erase_if(cq->entries, [&](const Cqe& entry) { return entry.qp == &qp; });
  }
  qp.now = qp.state = IBV_QPS_RESET;
  qp.failure = Status::kOk;
  qp.path = {.last_arrival = qp.path.last_arrival};
}

namespace {

// IBTA table 91 and ibv_modify_qp(3): what each transition takes.

Result<void> to_init(SimQp& qp, const ibv_qp_attr& attr, int mask) {
  constexpr int kAttributes = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (qp.now == IBV_QPS_INIT) {
    VERBENA_TRY(check_mask(mask, 0, kAttributes, "INIT to INIT"));
  } else {
    VERBENA_TRY(check_mask(mask, kAttributes, 0, "RESET to INIT"));
  }
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) qp.path.access = attr.qp_access_flags;
  qp.now = qp.state = IBV_QPS_INIT;
  return {};
}

Result<void> to_rtr(SimQp& qp, const ibv_qp_attr& attr, int mask) {
  constexpr int kAlways = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  constexpr int kReliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  constexpr int kOptional = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
  VERBENA_TRY(check_mask(mask, qp.is_reliable() ? kAlways | kReliable : kAlways, kOptional, "INIT to RTR"));
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) qp.path.access = attr.qp_access_flags;
  qp.path.gid = attr.ah_attr.grh.dgid;
  qp.path.qp_num = attr.dest_qp_num;
  qp.path.min_rnr_timer = attr.min_rnr_timer;
  qp.responder.start(attr.rq_psn);
  qp.now = qp.state = IBV_QPS_RTR;
  return {};
}

Result<void> to_rts(SimQp& qp, const ibv_qp_attr& attr, int mask) {
  constexpr int kReliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  constexpr int kOptional = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
  if (qp.is_reliable()) {
    VERBENA_TRY(check_mask(mask, IBV_QP_SQ_PSN | kReliable, kOptional | IBV_QP_MIN_RNR_TIMER, "RTR to RTS"));
    qp.path.timeout = attr.timeout;
    qp.path.retry_count = attr.retry_cnt;
    qp.path.rnr_retry = attr.rnr_retry;
    qp.path.max_rd_atomic = std::max<std::uint8_t>(attr.max_rd_atomic, 1);
  } else {
    VERBENA_TRY(check_mask(mask, IBV_QP_SQ_PSN, kOptional, "RTR to RTS of an unreliable connection"));
  }
  qp.requester.start(attr.sq_psn);
  qp.now = qp.state = IBV_QPS_RTS;
  return {};
}

}  // namespace

Result<void> SimNic::modify_qp(ibv_qp* base, const ibv_qp_attr& attr, int mask, Deadline) {
  auto& qp = *static_cast<SimQp*>(base);
  if ((mask & IBV_QP_STATE) == 0) {
    return fail(Status::kUnsupported, "modify_qp", EOPNOTSUPP, "attributes are changed with the state only");
  }
  const ibv_qp_state from = qp.now;
  const ibv_qp_state to = attr.qp_state;
  world().note({qp.qp_num, static_cast<std::uint64_t>(to)});
  world().tell("{} is taken to state {}", describe(qp), static_cast<int>(to));
  if (to == IBV_QPS_RESET) {
    reset(qp);
    return {};
  }
  if (to == IBV_QPS_ERR) {
    qp.enter_error(Status::kFlushed);
    return {};
  }
  if (to == IBV_QPS_INIT && (from == IBV_QPS_RESET || from == IBV_QPS_INIT)) return to_init(qp, attr, mask);
  if (to == IBV_QPS_RTR && from == IBV_QPS_INIT) return to_rtr(qp, attr, mask);
  if (to == IBV_QPS_RTS && from == IBV_QPS_RTR) return to_rts(qp, attr, mask);
  return fail(Status::kBadArgument, "modify_qp", EINVAL,
              "a queue pair cannot go from state {} to {}: the order is RESET, INIT, RTR, RTS", static_cast<int>(from),
              static_cast<int>(to));
}

ibv_qp_state SimNic::qp_state(const ibv_qp* qp) const noexcept { return static_cast<const SimQp*>(qp)->now; }

Status SimNic::qp_failure(const ibv_qp* qp) const noexcept { return static_cast<const SimQp*>(qp)->failure; }

void SimNic::lose_peer(const ibv_qp* base) noexcept {
  SimQp* const qp = find(base->qp_num);
  if (qp != nullptr) qp->enter_error(Status::kPeerLost);
}

Result<void> SimNic::destroy_qp(ibv_qp* base) {
  auto& qp = *static_cast<SimQp*>(base);
  reset(qp);
  --qp.scq->users;
  --qp.rcq->users;
  if (qp.shared != nullptr) --qp.shared->users;
  --static_cast<SimPd*>(qp.pd)->users;
  --objects_.qps;
  qps_.erase(qp.qp_num);
  return {};
}

nic::QpAddress SimNic::address_of(const ibv_qp* qp) const noexcept {
  nic::QpAddress address;
  address.gid = gid_;
  address.qp_num = qp->qp_num;
  address.mtu = IBV_MTU_4096;
  address.max_rd_atomic = static_cast<std::uint8_t>(limits_.max_rd_atomic);
  address.network = nic::Network::kRoceV2Ipv6;
  return address;
}

Result<nic::PeerProcess> SimNic::peer_of(const ibv_qp*) const {
  return fail(Status::kUnsupported, "peer_of", EOPNOTSUPP, "a device does not know the process at the other end");
}

nic::Nic::Objects SimNic::objects() const { return objects_; }

}  // namespace verbena::sim
