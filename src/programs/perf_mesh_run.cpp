// One process's part of verbena-perf mesh.
#include "programs/perf_mesh.hpp"

#include "base/error.hpp"
#include "base/ticks.hpp"
#include "host/proc_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

namespace verbena::programs {
namespace {

using mesh::Completion;

constexpr const char* kPerf = "verbena-perf";
/// Limit for a process that sleeps while others work: it ends earlier, with them.
constexpr std::chrono::hours kLongestRun{24};
/// Operations to one peer before the next peer's turn.
constexpr std::uint64_t kMostBurst = 32;

/// Resident memory of this process, with its share of shared memory. 0: the kernel does not say.
std::uint64_t memory_in_use() noexcept {
  return host::sum_of_lines("/proc/self/smaps_rollup", {"Pss:"}).value_or(0) * 1024;
}

/// A process's report to the others at the end.
struct Report {
  double seconds = 0;
  double join_seconds = 0;
  std::uint64_t memory_bytes = 0;
};
static_assert(sizeof(Report) <= mesh::kMaxGatherBytes);

/// A process that has joined the mesh.
class Player {
 public:
  Player(const MeshArguments& arguments, mesh::Mesh& mesh)
      : arguments_(arguments),
        mesh_(mesh),
        lane_(mesh.lane(0)),
        id_(mesh.options().id),
        processes_(mesh.options().processes),
        bytes_(arguments.bytes),
        started_(processes_),
        arrived_(processes_),
        deadline_(Deadline::after(arguments.timeout)) {}

  /// Allocates memory, and finds the peers' windows.
  [[nodiscard]] Result<void> prepare() {
    // Room for all processes, twice: a peer may be a round ahead.
    const std::size_t places = 2 * std::size_t{processes_} * bytes_;
    VERBENA_ASSIGN(own_, mesh_.allocate(places));
    VERBENA_ASSIGN(source_, mesh_.allocate(bytes_));
    if (arguments_.by() == MeshBy::kWrite) {
      VERBENA_TRY(mesh_.publish("perf", own_));
      windows_.resize(processes_);
      for (unsigned peer = 0; peer < processes_; ++peer) {
        if (peer == id_) continue;
        VERBENA_ASSIGN(windows_[peer], lane_.find(peer, "perf", next_deadline()));
      }
    }
    return lane_.barrier(next_deadline());
  }

  /// Carries out `count` operations of the pattern. The other processes sleep until these are done.
  [[nodiscard]] Result<void> play(std::uint64_t count, Histogram& ticks) {
    const bool is_idle = id_ >= players();
    if (!is_idle) {
      (void)next_deadline();
      if (const Status status = perform(count, ticks); status != Status::kOk)
        return fail(status, kPerf, 0, "the run broke after {} operations{}", done_,
                    gone_ ? fmt::format(": process {} is gone", *gone_) : "");
    }
    return lane_.barrier(is_idle ? Deadline::after(kLongestRun) : next_deadline());
  }

  [[nodiscard]] std::uint64_t last_ticks() const noexcept { return last_ticks_; }

 private:
  /// The number of processes, from 0 on, that have something to do.
  [[nodiscard]] unsigned players() const noexcept {
    switch (arguments_.pattern) {
      case MeshPattern::kPingPong: return 2;
      case MeshPattern::kPoll: return 1;
      default: return processes_;
    }
  }

  Deadline next_deadline() noexcept {
    was_silent_ = true;
    return deadline_ = Deadline::after(arguments_.timeout);
  }

  Status perform(std::uint64_t count, Histogram& ticks) noexcept {
    const std::uint64_t start = ticks_now();
    const auto timed = [&](auto&& call) {
      return time_calls(
          ticks, count, arguments_.clock_every, [] { return false; },
          [&] {
            const Status status = call();
            ++done_;
            return status;
          });
    };
    Status status = Status::kOk;
    switch (arguments_.pattern) {
      case MeshPattern::kPingPong: status = timed([&] { return id_ == 0 ? serve_ball() : return_ball(); }); break;
      case MeshPattern::kExchange: status = timed([&] { return exchange(); }); break;
      case MeshPattern::kStream: status = stream(count); break;
      case MeshPattern::kPoll: status = timed([&] { return take_now(); }); break;
      case MeshPattern::kJoin: break;
    }
    if (status == Status::kOk) status = await_own();
    last_ticks_ = ticks_now() - start;
    return status;
  }

  // --- patterns

  Status serve_ball() noexcept {
    const Status status = hit_ball(1);
    return status == Status::kOk ? await_ball() : status;
  }
  Status return_ball() noexcept {
    const Status status = await_ball();
    return status == Status::kOk ? hit_ball(0) : status;
  }
  /// Answers first: gives the memory of the received message back while the answer is on its way.
  Status hit_ball(unsigned peer) noexcept {
    const Status status = post(peer, true);
    if (ball_) (void)lane_.release(*ball_);
    ball_.reset();
    return status;
  }
  Status await_ball() noexcept {
    const std::uint64_t awaited = ++balls_;
    while (heard_ < awaited)
      if (const Status status = wait(); status != Status::kOk) return status;
    return Status::kOk;
  }

  Status exchange() noexcept {
    // Starts with the next ids, so that not all processes send to process 0 at once.
    for (unsigned i = 1; i < processes_; ++i)
      if (const Status status = post((id_ + i) % processes_, true); status != Status::kOk) return status;
    lane_.flush();
    // Bytes of a peer that is a round ahead count for the next round.
    std::uint64_t& here = heard_by_parity_[round_ % 2];
    while (here < processes_ - 1)
      if (const Status status = wait(); status != Status::kOk) return status;
    here = 0;
    ++round_;
    return Status::kOk;
  }

  Status stream(std::uint64_t count) noexcept {
    const bool tells = arguments_.by() == MeshBy::kMessage;
    const std::uint64_t awaited = heard_ + (tells ? count * (processes_ - 1) : 0);
    // All peers have got the same number.
    const std::uint64_t target = started_[(id_ + 1) % processes_] + count;
    for (std::uint64_t left = count * (processes_ - 1); left != 0;) {
      const std::uint64_t before = left;
      for (unsigned i = 1; i < processes_; ++i) {
        const unsigned peer = (id_ + i) % processes_;
        for (std::uint64_t burst = std::min(target - started_[peer], kMostBurst); burst != 0; --burst) {
          const Status status = try_to_post(peer, tells);
          if (status == Status::kAgain) break;
          if (status != Status::kOk) return status;
          --left;
          ++done_;
        }
      }
      if (const Status status = left == before ? wait() : take_now(); status != Status::kOk) return status;
    }
    lane_.flush();
    while (heard_ < awaited)
      if (const Status status = wait(); status != Status::kOk) return status;
    return Status::kOk;
  }

  // --- calls

  /// `tells`: notifies the peer; messages always do.
  Status try_to_post(unsigned peer, bool tells) noexcept {
    Status status = Status::kOk;
    if (arguments_.by() == MeshBy::kMessage) {
      status = lane_.send(peer, source_, 0);
    } else {
      const std::uint64_t place = (started_[peer] % 2 * processes_ + id_) * bytes_;
      status = lane_.write(windows_[peer], place, source_, 0, tells ? std::optional<std::uint32_t>(0) : std::nullopt);
    }
    if (status != Status::kOk && status != Status::kAgain) gone_ = peer;
    if (status != Status::kOk) return status;
    ++started_[peer];
    ++under_way_;
    return status;
  }

  Status post(unsigned peer, bool tells) noexcept {
    for (;;) {
      const Status status = try_to_post(peer, tells);
      if (status != Status::kAgain) return status;
      if (const Status waited = wait(); waited != Status::kOk) return waited;
    }
  }

  Status await_own() noexcept {
    while (under_way_ != 0)
      if (const Status status = wait(); status != Status::kOk) return status;
    return Status::kOk;
  }

  /// Takes what is ready, without waiting.
  Status take_now() noexcept { return take_all(lane_.poll(taken_)); }

  /// Takes what is ready, or waits for it; may also return with nothing, when a call may be tried again. If all peers
  /// are silent for the whole timeout, that is an error.
  Status wait() noexcept {
    const std::size_t count = arguments_.yields ? poll_and_yield() : lane_.wait(taken_, deadline_);
    if (count != 0) {
      was_silent_ = false;
      return take_all(count);
    }
    if (!deadline_.passed()) return Status::kOk;
    if (std::exchange(was_silent_, true)) return Status::kTimedOut;
    (void)next_deadline();
    return Status::kOk;
  }

  /// For more processes than cpus: a process that finds nothing gives up the cpu, and soon polls again.
  std::size_t poll_and_yield() noexcept {
    constexpr unsigned kPollsOfAClock = 64;
    for (unsigned polls = 0; polls < kPollsOfAClock; ++polls) {
      if (const std::size_t count = lane_.poll(taken_); count != 0) return count;
      std::this_thread::yield();
    }
    return 0;
  }

  Status take_all(std::size_t count) noexcept {
    for (const Completion& one : std::span(taken_).first(count)) {
      switch (one.kind) {
        case Completion::Kind::kReceive: receive(one); break;
        case Completion::Kind::kWritten: heard(one.peer); break;
        case Completion::Kind::kJoined: break;
        case Completion::Kind::kLeft: return gone(one);
        default:
          if (one.status != Status::kOk) return gone(one);
          --under_way_;
      }
    }
    return Status::kOk;
  }

  void receive(const Completion& message) noexcept {
    heard(message.peer);
    if (arguments_.pattern == MeshPattern::kPingPong) {
      ball_ = message;
      return;
    }
    // Copies to where a collective call leaves the data.
    std::memcpy(own_.data() + message.peer * bytes_, message.bytes.data(), std::min(message.bytes.size(), bytes_));
    (void)lane_.release(message);
  }

  void heard(unsigned peer) noexcept {
    ++heard_;
    ++heard_by_parity_[arrived_[peer]++ % 2];
  }

  Status gone(const Completion& one) noexcept {
    gone_ = one.peer;
    return one.status;
  }

  const MeshArguments& arguments_;
  mesh::Mesh& mesh_;
  mesh::Lane& lane_;
  const unsigned id_;
  const unsigned processes_;
  const std::size_t bytes_;
  std::span<std::byte> own_, source_;
  std::vector<mesh::Window> windows_;
  std::array<Completion, 64> taken_;
  std::optional<Completion> ball_;                ///< The last message of a ping-pong.
  std::vector<std::uint64_t> started_, arrived_;  ///< Operations to each peer, and those that each peer reported.
  std::array<std::uint64_t, 2> heard_by_parity_{};
  std::uint64_t heard_ = 0, balls_ = 0, round_ = 0, under_way_ = 0, done_ = 0;
  std::uint64_t last_ticks_ = 0;
  std::optional<unsigned> gone_;
  Deadline deadline_;
  bool was_silent_ = true;  ///< Nothing has arrived since the deadline was set.
};

Result<std::unique_ptr<mesh::Carrier>> carrier_of(const MeshArguments& a) {
  if (!a.hosts.empty()) return mesh::host_list_carrier(a.hosts);
  return mesh::directory_carrier(a.directory, a.mesh.job.empty() ? "perf" : a.mesh.job);
}

mesh::Options options_of(const MeshArguments& a) {
  mesh::Options options = a.mesh;
  options.join_timeout = a.timeout;
  if (!a.hosts.empty()) {
    // Already checked.
    const std::string& entry = a.hosts[options.id];
    const std::size_t colon = entry.rfind(':');
    (void)std::from_chars(entry.data() + colon + 1, entry.data() + entry.size(), options.port);
    options.address = entry.substr(0, colon);
    if (options.address.starts_with('[')) options.address = options.address.substr(1, options.address.size() - 2);
  }
  if (a.by() == MeshBy::kMessage) options.message_bytes = a.bytes;
  return options;
}

/// Counts operations and messages of all processes, by the pattern.
void count(MeshResult& result) noexcept {
  const MeshArguments& a = result.arguments;
  const std::uint64_t pairs = std::uint64_t{a.mesh.processes} * (a.mesh.processes - 1);
  switch (a.pattern) {
    case MeshPattern::kPingPong: result.messages = 2 * a.iterations; break;
    case MeshPattern::kExchange:
    case MeshPattern::kStream: result.messages = pairs * a.iterations; break;
    default: break;
  }
  result.operations = a.pattern == MeshPattern::kStream ? result.messages
                      : a.pattern == MeshPattern::kJoin ? 0
                                                        : a.iterations;
}

double seconds_of(std::uint64_t ticks) noexcept { return static_cast<double>(ticks) / ticks_per_us() / 1e6; }

}  // namespace

Result<std::unique_ptr<MeshResult>> measure_mesh(const MeshArguments& arguments,
                                                 const std::function<Result<void>()>& joined) {
  auto result = std::make_unique<MeshResult>();
  result->arguments = arguments;
  result->environment = read_environment();
  result->clock_ns = clock_reading_ns();
  Report mine;
  const std::uint64_t before = memory_in_use();
  const std::uint64_t start = ticks_now();
  VERBENA_ASSIGN(auto carrier, carrier_of(arguments));
  VERBENA_ASSIGN(const auto mesh, mesh::Mesh::join(options_of(arguments), std::move(carrier)));
  mine.join_seconds = seconds_of(ticks_now() - start);
  const std::uint64_t after = memory_in_use();
  mine.memory_bytes = after > before ? after - before : 0;
  result->description = mesh->description();
  VERBENA_TRY(joined());
  Player player(arguments, *mesh);
  if (arguments.pattern != MeshPattern::kJoin) {
    VERBENA_TRY(player.prepare());
    Histogram& ticks = result->ticks;
    VERBENA_TRY(player.play(arguments.warm_up, ticks));
    ticks.clear();
    VERBENA_TRY(player.play(arguments.iterations, ticks));
    mine.seconds = seconds_of(player.last_ticks());
  }
  std::vector<Report> all(arguments.mesh.processes);
  VERBENA_TRY(mesh->lane(0).gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                                   Deadline::after(arguments.timeout)));
  std::uint64_t memory = 0;
  for (const Report& each : all) {
    result->seconds = std::max(result->seconds, each.seconds);
    result->join_seconds = std::max(result->join_seconds, each.join_seconds);
    memory += each.memory_bytes;
  }
  result->memory_bytes = memory / all.size();
  count(*result);
  return result;
}

}  // namespace verbena::programs
