// One end of a run of verbena-perf: its control channel, and its lanes.
#pragma once

#include "programs/perf_lane.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace verbena::programs {

/// As many cpus as there are threads, the allowed ones in turn, from `first` on; empty without `first`.
[[nodiscard]] std::vector<unsigned> perf_cpus(std::optional<unsigned> first, unsigned threads);

/// Made for one run and immovable. The control channel says when it begins and ends; each lane is a thread's while it
/// goes on.  \thread owner  \alloc setup
class PerfEnd final : private message::Handler {
 public:
  /// The device outlives the end.
  [[nodiscard]] static Result<std::unique_ptr<PerfEnd>> create(PerfDevice& device, const perf_wire::RunHello& run,
                                                               PerfRole role, std::chrono::milliseconds timeout);
  ~PerfEnd() = default;
  PerfEnd(const PerfEnd&) = delete;
  PerfEnd& operator=(const PerfEnd&) = delete;

  /// The client's side of all handshakes. Errors: those of link::dial, and kProtocol.
  [[nodiscard]] Result<void> dial(std::uint16_t port);
  /// The server's: `control` has said the run's hello. The run's other connections are awaited; what else comes is sent
  /// away.
  [[nodiscard]] Result<void> welcome(link::Incoming& control, link::Listener& listener);

  /// One a thread.
  [[nodiscard]] std::span<const std::unique_ptr<PerfLane>> lanes() const noexcept { return lanes_; }
  /// Tells the server that this was all, and waits a moment for its answer.
  void say_bye() noexcept;

  /// The server's part of the run, in threads on these cpus (anywhere without), up to the client's bye.
  [[nodiscard]] Result<void> serve(std::span<const unsigned> cpus);

 private:
  PerfEnd(PerfDevice& device, const perf_wire::RunHello& run, PerfRole role, std::chrono::milliseconds timeout);
  void on_message(message::Channel& /*channel*/, std::span<const std::byte> /*body*/) noexcept override { bye_ = true; }
  void on_fragment(message::Channel& channel, const message::Fragment& /*fragment*/) noexcept override {
    channel.fail(Status::kProtocol);
  }
  void on_complete(message::Channel& /*channel*/, std::uint64_t /*token*/, Status /*status*/) noexcept override {}
  void on_failure(message::Channel& /*channel*/, Status reason) noexcept override { failure_ = reason; }

  [[nodiscard]] Result<void> create();
  [[nodiscard]] PerfConnection& connection(std::uint32_t index) noexcept {
    return lanes_[index / run_.connections]->connection(index % run_.connections);
  }
  [[nodiscard]] Result<link::Endpoint> endpoint_of(std::uint16_t index);
  [[nodiscard]] Result<void> dial_one(std::uint16_t port, std::uint16_t index);
  [[nodiscard]] Result<void> welcome_one(link::Listener& listener);
  [[nodiscard]] Result<link::Incoming> next_of_run(link::Listener& listener, std::uint16_t& index);

  /// In a thread of its own.
  void serve_lane(PerfLane& lane, std::optional<unsigned> cpu) noexcept;
  [[nodiscard]] Status await_bye() noexcept;
  /// Of all lanes.
  [[nodiscard]] std::uint64_t heard() const noexcept;
  void stop_lanes() noexcept;
  [[nodiscard]] Status send_bye(Deadline deadline) noexcept;

  PerfDevice& device_;
  const perf_wire::RunHello run_;
  const PerfRole role_;
  const PerfPatience patience_;
  std::unique_ptr<engine::CompletionLoop> loop_;
  std::unique_ptr<message::Channel> control_;
  std::vector<std::unique_ptr<PerfLane>> lanes_;

  bool bye_ = false;
  Status failure_ = Status::kOk;  ///< Of the control channel.
  std::atomic<bool> stop_{false};
  std::atomic<Status> lane_failure_{Status::kOk};  ///< The first one.
};

}  // namespace verbena::programs
