#include "nic/soft/copier.hpp"

#include "base/futex.hpp"
#include "base/relax.hpp"
#include "base/ticks.hpp"
#include "host/thread.hpp"
#include "nic/soft/path.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/uio.h>

#include <cerrno>
#include <vector>

namespace verbena::nic::soft {

namespace {

using namespace std::chrono_literals;

/// The thread looks for the next job so long before it sleeps.
constexpr auto kAwake = 50us;
/// The kernel copies a piece of memory that is there in a thousandth of that.
constexpr auto kStuck = 10ms;
/// When a job takes so long, the thread may be waiting for its processor.
constexpr auto kSlow = 500us;
/// Threads that wait for pages of one user's processes, beyond the ends of the connections.
constexpr std::size_t kMostStuck = 8;
/// How long the thread stays on a processor to which it has moved, at first.
constexpr auto kStays = 10ms;

}  // namespace

// --- control --------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Copier>> Copier::start(const PeerProcess& peer, int pidfd, std::thread& like) {
  // All copiers of this process, of whatever NIC. Those that have ended are stuck.
  static std::mutex mutex;
  static std::vector<std::weak_ptr<Copier>> all;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& one) { return one.expired(); });
  std::size_t stuck = 0;
  for (const auto& one : all) {
    const std::shared_ptr<Copier> other = one.lock();
    if (other == nullptr || !other->is_ending_.load(std::memory_order_acquire)) continue;
    stuck += other->peer_ == peer ? kMostStuck : static_cast<std::size_t>(other->peer_.uid == peer.uid);
  }
  if (stuck >= kMostStuck) {
    return fail(Status::kLimit, "import_window", 0, "{} threads wait for pages of processes of user {}", stuck,
                peer.uid);
  }
  all.reserve(all.size() + 1);  // Nothing throws once there is a thread.
  const auto copier = std::make_shared<Copier>();
  copier->peer_ = peer;
  copier->stays_ = ticks_in(kStays);
  if (pidfd >= 0) {
    copier->pidfd_ = Fd(::fcntl(pidfd, F_DUPFD_CLOEXEC, 0));
    if (!copier->pidfd_) return fail_system("fcntl", errno, "keeping a peer's process");
  }
  VERBENA_ASSIGN(copier->memory_, LazyMemory::create(kPieceBytes + kMaxInline, "making a buffer for copies"));
  // The caller may be pinned to one processor, where the two would only wait for each other.
  if (pthread_getaffinity_np(like.native_handle(), sizeof copier->cpus_, &copier->cpus_) != 0) CPU_ZERO(&copier->cpus_);
  VERBENA_ASSIGN(copier->thread_, host::start_thread("verbena-copy", [copier] { copier->run(); }));
  all.push_back(copier);
  return copier;
}

Peer::~Peer() {
  if (copier != nullptr) copier->end();
}

void Copier::end() noexcept {
  const bool is_at_rest = is_free();
  std::thread thread = std::move(thread_);
  is_ending_.store(true, std::memory_order_seq_cst);
  wake();
  if (is_at_rest) {
    thread.join();
  } else {
    thread.detach();
  }
}

// --- the owner of a queue pair --------------------------------------------------------------------------------------

bool Copier::claim() noexcept {
  if (!is_free() || !moves(State::kFree, State::kHeld)) return false;
  claimed_.store(ticks_now(), std::memory_order_relaxed);
  is_hurried_ = false;
  return true;
}

bool Copier::is_stuck() const noexcept {
  const std::uint64_t last =
      std::max(moved_at_.load(std::memory_order_relaxed), claimed_.load(std::memory_order_relaxed));
  return state_.load(std::memory_order_relaxed) == State::kLeft || ticks_now() - last > ticks_in(kStuck);
}

void Copier::post() noexcept {
  ++posted_;
  ++thread_counters.copies;
  job_.cpu = static_cast<std::int16_t>(::sched_getcpu());
  // Either the thread sees the job before it sleeps, or we see that it sleeps.
  state_.store(State::kPosted, std::memory_order_seq_cst);
  wake();
}

void Copier::wake() noexcept {
  if (sleeps_.load(std::memory_order_seq_cst) == 0 || sleeps_.exchange(0, std::memory_order_relaxed) == 0) [[likely]]
    return;
  ++thread_counters.wakeups;
  wake_waiters(sleeps_);
}

void Copier::look_again() const noexcept {
  if (cpu_.load(std::memory_order_relaxed) == ::sched_getcpu()) {
    std::this_thread::yield();
  } else {
    relax();
  }
}

void Copier::hurry() noexcept {
  const auto here = static_cast<unsigned>(::sched_getcpu());
  if (is_hurried_ || ticks_now() - claimed_.load(std::memory_order_relaxed) < ticks_in(kSlow)) return;
  is_hurried_ = true;
  if (!CPU_ISSET(here, &cpus_)) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(here, &only);
  // Moves it; then it may move again.
  for (const cpu_set_t* const cpus : {&only, &cpus_})
    (void)pthread_setaffinity_np(thread_.native_handle(), sizeof *cpus, cpus);
  cpu_.store(static_cast<int>(here), std::memory_order_relaxed);
}

bool Copier::has_progress() noexcept {
  const std::uint64_t moved = moved_.load(std::memory_order_relaxed);
  return std::exchange(seen_, moved) != moved;
}

bool Copier::arm(const SoftQp& qp) noexcept {
  if (!std::exchange(is_armed_, true)) {
    const std::lock_guard lock(mutex_);
    sleeper_ = &qp;
  }
  wants_bell_.store(true, std::memory_order_seq_cst);
  return done_.load(std::memory_order_seq_cst) == posted_;
}

void Copier::disarm() noexcept {
  if (!std::exchange(is_armed_, false)) [[likely]]
    return;
  const std::lock_guard lock(mutex_);
  sleeper_ = nullptr;
}

void Copier::release() noexcept {
  disarm();
  state_.store(State::kFree, std::memory_order_release);
}

void Copier::abandon(std::shared_ptr<const Mapping> keeps) noexcept {
  disarm();
  keeps_ = std::move(keeps);
  while (!moves(State::kPosted, State::kLeft) && !moves(State::kKernel, State::kLeft)) {
    if (state_.load(std::memory_order_acquire) != State::kDone) {
      std::this_thread::yield();
      continue;
    }
    while (!is_done()) std::this_thread::yield();  // The thread's next store.
    keeps_.reset();
    return release();
  }
  wake();
}

// --- the thread -----------------------------------------------------------------------------------------------------

void Copier::run() noexcept {
  int owner_cpu = -1;
  for (std::uint32_t done = 0; await_job(owner_cpu);) {
    outcome_ = copy();
    // The holder may write the next job once this one is done.
    const std::uint64_t even = job_.even;
    owner_cpu = job_.cpu;
    // The word last: who sees it even looks no further.
    job_.word.exchange(nullptr, std::memory_order_acq_rel)->store(even, std::memory_order_release);
    ++done;
    if (!moves(State::kKernel, State::kDone)) {
      keeps_.reset();
      done_.store(done, std::memory_order_relaxed);
      state_.store(State::kFree, std::memory_order_release);
      continue;
    }
    done_.store(done, std::memory_order_seq_cst);
    // Who goes to sleep says so before it looks at this.
    if (wants_bell_.load(std::memory_order_seq_cst)) [[unlikely]]
      ring();
  }
}

/// Waits for a job after one from a thread on that processor. False: there will be none.
bool Copier::await_job(int owner_cpu) noexcept {
  const auto is_over = [&] { return is_ending_.load(std::memory_order_seq_cst); };
  const auto has_job = [&] {
    const State state = state_.load(std::memory_order_seq_cst);
    return state == State::kPosted || state == State::kLeft;
  };
  const std::uint64_t start = ticks_now();
  const bool is_apart = owner_cpu != ::sched_getcpu() || move_away();
  const std::uint64_t awake = is_apart ? ticks_in(kAwake) : 0;
  for (;;) {
    if (has_job()) {
      (void)moves(State::kPosted, State::kKernel);  // Or it was abandoned: `copy` copies nothing.
      return true;
    }
    if (is_over()) return false;
    if (ticks_now() - start < awake) {
      relax();
      continue;
    }
    cpu_.store(::sched_getcpu(), std::memory_order_relaxed);
    sleeps_.store(1, std::memory_order_seq_cst);
    if (!has_job() && !is_over()) sleep_while(sleeps_, 1);
    sleeps_.store(0, std::memory_order_relaxed);
  }
}

/// Leaves the owner's processor, where each of the two waits until the other sleeps. By itself the scheduler leaves a
/// thread that soon sleeps where it is, even beside an idle processor. False: there is no other; or it was not so good
/// there, because the thread was brought back: then it stays twice as long.
bool Copier::move_away() noexcept {
  const std::uint64_t now = ticks_now();
  if (now < may_move_) return false;
  may_move_ = now + stays_;
  stays_ *= 2;
  cpu_set_t others = cpus_;
  CPU_CLR(static_cast<unsigned>(::sched_getcpu()), &others);
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof others, &others) != 0) return false;
  (void)::sched_setaffinity(0, sizeof cpus_, &cpus_);
  return true;
}

Copied Copier::copy() noexcept {
  for (std::uint64_t offset = 0; offset < job_.length; offset += kPieceBytes) {
    const std::uint64_t bytes = std::min<std::uint64_t>(job_.length - offset, kPieceBytes);
    if (!job_.is_read && !touch(offset, bytes)) return Copied::kGone;
    if (state_.load(std::memory_order_relaxed) == State::kLeft) return Copied::kGone;
    const Copied copied = copy_by_kernel(offset, bytes);
    if (copied != Copied::kAll) return copied;
    if (job_.is_read && !touch(offset, bytes)) return Copied::kGone;
    if (bytes == job_.length) break;
    moved_.fetch_add(bytes, std::memory_order_relaxed);
    moved_at_.store(ticks_now(), std::memory_order_relaxed);
  }
  return Copied::kAll;
}

/// Copies between the buffer and the user's memory. False: its owner has given up.
bool Copier::touch(std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (!moves(State::kKernel, State::kTouching)) return false;
  std::byte* at = memory_.data();
  for_parts({job_.parts.data(), job_.count}, offset, bytes, [&](const ibv_sge& sge, std::uint64_t from, std::size_t n) {
    std::byte* const here = reinterpret_cast<std::byte*>(sge.addr) + from;
    std::memcpy(job_.is_read ? here : at, job_.is_read ? at : here, n);
    at += n;
    return true;
  });
  state_.store(State::kKernel, std::memory_order_release);
  return true;
}

/// Continues partial transfers where they ended, until the kernel moves nothing more.
Copied Copier::copy_by_kernel(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  for (std::uint64_t done = 0; done < bytes;) {
    // The number may be reused once the peer's process is gone, but not between this check and the copy.
    if (pidfd_ && is_signalled(pidfd_.get())) return Copied::kGone;
    const iovec here{memory_.data() + done, bytes - done};
    const iovec there{reinterpret_cast<void*>(job_.there + offset + done), bytes - done};
    const ssize_t moved = job_.is_read ? ::process_vm_readv(peer_.pid, &here, 1, &there, 1, 0)
                                       : ::process_vm_writev(peer_.pid, &here, 1, &there, 1, 0);
    if (moved > 0) {
      done += static_cast<std::uint64_t>(moved);
    } else if (moved == 0 || errno == EFAULT) {
      return Copied::kFault;
    } else if (errno == ESRCH) {
      return Copied::kGone;
    } else if (errno != EINTR) {
      return Copied::kDenied;
    }
  }
  return Copied::kAll;
}

void Copier::ring() noexcept {
  const std::lock_guard lock(mutex_);
  wants_bell_.store(false, std::memory_order_relaxed);
  if (sleeper_ != nullptr) SoftNic::ring_bells(*sleeper_);
}

}  // namespace verbena::nic::soft
