// One polling loop of a run of verbena-perf, with its connections, its memory, and the operations that are measured.
#pragma once

#include "programs/perf_connection.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace verbena::programs {

/// How long an end of a run waits: for a sign of the peer, and altogether.
class PerfPatience {
 public:
  PerfPatience(PerfRole role, std::chrono::milliseconds timeout) noexcept;
  /// A deadline for the next wait, from a time that was read already.
  [[nodiscard]] Deadline from(std::uint64_t now) const noexcept {
    return earlier(Deadline::at_ticks(now + timeout_ticks_), end_);
  }
  [[nodiscard]] Deadline now() const noexcept { return from(ticks_now()); }
  /// For what follows a wait that began then, without another reading of the clock.
  [[nodiscard]] Deadline after_wait(std::uint64_t began) const noexcept { return from(began + timeout_ticks_); }
  [[nodiscard]] bool ended() const noexcept { return end_.passed(); }

 private:
  std::uint64_t timeout_ticks_;
  Deadline end_;  ///< A server is not one client's for ever.
};

/// Made for one run and immovable. Every wait ends within twice the timeout that is given, or with the peer's death: on
/// the soft NIC at once; on a device when an operation finds it dead, so a side that waits for the peer's memory to
/// change reads a byte of the peer's from time to time.  \thread owner  \alloc setup (create, and its connections)
class PerfLane {
 public:
  /// The device outlives the lane.
  [[nodiscard]] static Result<std::unique_ptr<PerfLane>> create(PerfDevice& device, const perf_wire::RunHello& run,
                                                                PerfRole role, PerfPatience patience);
  PerfLane(const PerfLane&) = delete;
  PerfLane& operator=(const PerfLane&) = delete;
  ~PerfLane() = default;

  // Setup.
  [[nodiscard]] PerfConnection& connection(std::uint32_t index) noexcept { return *connections_[index]; }
  [[nodiscard]] const nic::RegisteredArena& shared() const noexcept { return shared_; }
  /// Lets the process behind `remote` use the lane's memory; the first one only.
  [[nodiscard]] Result<void> grant(const link::Endpoint& remote);

  // Rounds of a client, one at a time, counted from 1.
  [[nodiscard]] Status read(Deadline deadline) noexcept {
    return first().link().read(first().own(), first().peer(), deadline);
  }
  [[nodiscard]] Status write(Deadline deadline) noexcept {
    return first().link().write(first().own(), first().peer(), deadline);
  }
  [[nodiscard]] Status pa_read(Deadline deadline) noexcept {
    return first().physical().read(first().own(), first().place(), deadline);
  }
  [[nodiscard]] Status pa_write(Deadline deadline) noexcept {
    return first().physical().write(first().own(), first().place(), deadline);
  }
  [[nodiscard]] Status fetch_add(Deadline deadline) noexcept {
    return first().link().fetch_add(first().word(), 1, old_, deadline);
  }
  [[nodiscard]] Status compare_swap(Deadline deadline) noexcept {
    // Each finds what the one before left.
    const std::uint64_t left = swapped_++;
    return first().link().compare_swap(first().word(), left, left + 1, old_, deadline);
  }
  [[nodiscard]] Status ping_pong(std::uint64_t round, Deadline deadline) noexcept;
  /// A message or an immediate, and the answer.
  [[nodiscard]] Status ask(Deadline deadline) noexcept;
  /// The same after `idle_ticks` of silence, timed from then on; this end does not sleep, whatever its policy.
  [[nodiscard]] Status ask_after(std::uint64_t idle_ticks, std::uint64_t& ticks) noexcept;

  // `count` operations of a client in flight at once, on all connections in turn, in batches of one doorbell.
  [[nodiscard]] Status pipeline(std::uint64_t count, std::uint32_t batch) noexcept;
  /// Messages that are not answered; returns when the server has taken all of them.
  [[nodiscard]] Status stream(std::uint64_t count, std::uint32_t batch) noexcept;

  /// Blocks as a receiver does, until `deadline`.
  [[nodiscard]] Status idle(Deadline deadline) noexcept;

  /// The server's part, until `stop`; who sets that wakes the loop. A client's thread that is done, or waits for the
  /// others, is silent: only who sees all lanes (`heard`) can tell a dead client by its silence.
  [[nodiscard]] Status serve(const std::atomic<bool>& stop) noexcept;
  /// Grows with every sign of the client's thread while `serve` runs.  \thread any
  [[nodiscard]] std::uint64_t heard() const noexcept { return heard_.load(std::memory_order_relaxed); }
  void wake() noexcept { loop_->wake(); }

  [[nodiscard]] engine::Counters counters() const noexcept { return loop_->counters(); }
  [[nodiscard]] const PerfPatience& patience() const noexcept { return patience_; }
  /// Times of started operations go there; none without.
  void record_to(Histogram* ticks) noexcept { counts_.ticks = ticks; }

 private:
  PerfLane(const perf_wire::RunHello& run, PerfRole role, PerfPatience patience) noexcept
      : run_(run), role_(role), patience_(patience) {}
  [[nodiscard]] Result<void> create(PerfDevice& device);
  [[nodiscard]] Result<void> create_shared(PerfDevice& device);
  /// Of a server: by physical address as well, with the table of that behind it.
  [[nodiscard]] Result<void> export_shared();
  [[nodiscard]] PerfConnection& first() noexcept { return *connections_.front(); }

  [[nodiscard]] Status write_mark(std::uint64_t round, Deadline deadline) noexcept;
  /// Without `stop` until the deadline.
  [[nodiscard]] Status await_mark(std::uint64_t round, const std::atomic<bool>* stop, Deadline deadline) noexcept;
  /// Reads a byte of the peer's memory, to see that the peer lives.
  [[nodiscard]] Status probe() noexcept;
  [[nodiscard]] Status serve_ping_pong(const std::atomic<bool>& stop) noexcept;

  /// Fills what is free of one connection's depth, of `left` operations; `started` grows.
  [[nodiscard]] Status fill(PerfConnection& connection, std::uint64_t left, std::uint32_t batch,
                            std::uint64_t& started) noexcept;
  /// Messages that went out, up to `most`.
  [[nodiscard]] std::uint64_t burst(PerfConnection& connection, std::uint64_t most, std::uint32_t batch) noexcept;
  [[nodiscard]] Status await_answers() noexcept;

  /// Begins a phase of waits, in which `advance` gives up after one timeout without progress.
  void start_waiting() noexcept {
    seen_ = progress();
    deadline_ = patience_.now();
  }
  /// Waits for something to be handled.
  [[nodiscard]] Status advance() noexcept;
  [[nodiscard]] Status look_for_progress() noexcept;
  [[nodiscard]] std::uint64_t progress() const noexcept { return counts_.completed + counts_.arrived; }
  template <class Done>
  [[nodiscard]] Status await(Done&& done, Deadline deadline) noexcept {
    const Status waited = loop_->wait_until([&] { return done() || counts_.failure != Status::kOk; }, deadline);
    return counts_.failure != Status::kOk && !done() ? counts_.failure : waited;
  }

  const perf_wire::RunHello run_;
  const PerfRole role_;
  const PerfPatience patience_;
  nic::Nic* nic_ = nullptr;
  std::unique_ptr<engine::CompletionLoop> loop_;
  nic::RegisteredArena own_;                      ///< What this side's operations are from, or to.
  nic::RegisteredArena shared_;                   ///< Where the peer's happen.
  std::optional<remote::PhysicalExport> export_;  ///< Before the memory goes.
  bool granted_ = false;
  PerfCounts counts_;
  Deadline deadline_ = Deadline::now();  ///< Of `advance`, and the progress when it was set.
  std::uint64_t seen_ = 0;
  std::uint64_t old_ = 0;  ///< What an atomic found.
  std::uint64_t swapped_ = 0;
  std::vector<std::unique_ptr<PerfConnection>> connections_;
  alignas(64) std::atomic<std::uint64_t> heard_{0};  ///< The owner's to write, others' to read.
};

}  // namespace verbena::programs
