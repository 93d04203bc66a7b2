// One connection of a run of verbena-perf, and what all of them count.
#pragma once

#include "engine/engine.hpp"
#include "link/fabric.hpp"
#include "message/message.hpp"
#include "nic/registered_arena.hpp"
#include "programs/histogram.hpp"
#include "programs/perf_wire.hpp"
#include "remote/physical.hpp"
#include "remote/remote.hpp"

#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>

namespace verbena::programs {

/// The NIC of verbena-perf, and the way that its connections are made.
struct PerfDevice {
  std::unique_ptr<link::Fabric> fabric;
  nic::Pd pd;
  /// Errors: those of link::Fabric::open.
  [[nodiscard]] static Result<PerfDevice> open(const link::FabricOptions& options, Deadline deadline);
  [[nodiscard]] nic::Nic& nic() const noexcept { return fabric->nic(); }
  /// What was chosen of the device, for people.
  [[nodiscard]] std::string path() const;
};

/// Of all connections of a lane.
struct PerfCounts {
  std::uint64_t completed = 0;  ///< Operations of this end that were started.
  std::uint64_t arrived = 0;    ///< Messages, immediates and whole large messages of the peer.
  std::uint64_t owed = 0;       ///< Of these, the peer wants answered.
  Status failure = Status::kOk;
  Histogram* ticks = nullptr;  ///< Where the times of operations that carry one go, in units of kPerfTick.
};
/// A latency is recorded in sixteenths of a tick: some operations take few ticks.
inline constexpr std::uint64_t kPerfTick = 16;

/// One queue pair that is measured: a link or a channel, by the test. Immovable; its lane's loop calls its handlers.
class PerfConnection final : private message::Handler, private remote::Handler {
 public:
  PerfConnection(const perf_wire::RunHello& run, PerfRole role, engine::LocalSpan own, PerfCounts& counts) noexcept
      : run_(run), role_(role), own_(own), counts_(counts) {}
  /// Which connection of the run a peer's endpoint says it is: below connections_of(run), or kProtocol.
  [[nodiscard]] static std::expected<std::uint16_t, Status> index_in(const perf_wire::RunHello& run,
                                                                     const link::Endpoint& remote) noexcept;
  [[nodiscard]] Result<void> create(PerfDevice& device, engine::CompletionLoop& loop);
  /// `shared` is the memory that the peer may use; empty for a channel.
  [[nodiscard]] Result<link::Endpoint> local_endpoint(std::uint16_t index, const nic::RegisteredArena& shared);
  [[nodiscard]] Result<void> connect(const link::Endpoint& local, const link::Endpoint& remote, Deadline deadline,
                                     const link::BringUp& how);
  /// After the bootstrap: makes usable what the peer said in its endpoint. kProtocol.
  [[nodiscard]] Result<void> open(const link::Endpoint& remote, link::Lifeline lifeline, Deadline deadline);
  [[nodiscard]] bool connected() const noexcept { return connected_; }

  [[nodiscard]] remote::Link& link() const noexcept { return *link_; }
  [[nodiscard]] message::Channel& channel() const noexcept { return *channel_; }
  [[nodiscard]] engine::LocalSpan own() const noexcept { return own_; }
  [[nodiscard]] engine::RemoteSpan peer() const noexcept {
    return {.address = peer_.address, .length = run_.bytes, .rkey = peer_.rkey};
  }
  /// Of a client, and where in the peer's physical memory its operations happen.
  [[nodiscard]] remote::PhysicalMap& physical() const noexcept { return *physical_; }
  [[nodiscard]] std::uint64_t place() const noexcept { return place_; }
  [[nodiscard]] remote::RemoteWord word() const noexcept { return {.address = peer_.address, .rkey = peer_.rkey}; }

  /// Sends what the peer answers, or does not: a message or an immediate. kAgain: poll.
  enum class Wants : std::uint8_t { kNothing = 0, kAnswer = 1 };
  [[nodiscard]] Status send(Wants wants) noexcept;
  /// Answers what is owed, as far as there is room.
  void answer() noexcept;
  /// Starts the test's operation, which completes later; `token` is when it was started, or 0.
  [[nodiscard]] Status start(std::uint64_t token) noexcept;
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }
  void hold() noexcept { link_ ? link_->hold() : channel_->hold(); }
  void release() noexcept { link_ ? link_->release() : channel_->release(); }

 private:
  void on_message(message::Channel& channel, std::span<const std::byte> body) noexcept override;
  void on_fragment(message::Channel& channel, const message::Fragment& fragment) noexcept override;
  void on_complete(message::Channel& /*channel*/, std::uint64_t token, Status status) noexcept override {
    complete(token, status);
  }
  void on_failure(message::Channel& /*channel*/, Status reason) noexcept override { counts_.failure = reason; }
  void on_complete(remote::Link& /*link*/, const remote::Completion& completion) noexcept override {
    complete(completion.token, completion.status);
  }
  void on_immediate(remote::Link& link, std::uint32_t immediate, std::uint32_t bytes) noexcept override;
  void on_failure(remote::Link& /*link*/, Status reason) noexcept override { counts_.failure = reason; }

  /// Of a client: the peer's memory by physical address, by the table that lies in its window.
  [[nodiscard]] Result<void> open_physical(Deadline deadline);
  void complete(std::uint64_t token, Status status) noexcept;
  /// False: it wants more answers than a peer of ours ever does.
  [[nodiscard]] bool note_arrival(Wants wants) noexcept;

  const perf_wire::RunHello run_;
  const PerfRole role_;
  const engine::LocalSpan own_;
  PerfCounts& counts_;
  std::unique_ptr<message::Channel> channel_;
  std::unique_ptr<remote::Link> link_;
  nic::Window peer_;
  std::unique_ptr<remote::PhysicalMap> physical_;  ///< Before its link goes.
  std::uint64_t place_ = 0;
  std::uint32_t in_flight_ = 0;
  bool owes_ = false;
  bool connected_ = false;
};

}  // namespace verbena::programs
