// One end of a run of verbena-perf: its connections, its memory, and the operations that are measured.
#pragma once

#include "engine/engine.hpp"
#include "link/fabric.hpp"
#include "message/message.hpp"
#include "nic/registered_arena.hpp"
#include "programs/perf_wire.hpp"
#include "remote/remote.hpp"

#include <chrono>
#include <cstdint>
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

enum class PerfRole : std::uint8_t { kClient, kServer };

/// Made for one run and immovable. Every wait ends within the timeout that is given, or with the peer's death: on the
/// soft NIC at once; on a device when an operation finds it dead, so a side that waits for the peer's memory to change
/// reads a byte of the peer's from time to time.  \thread owner  \alloc setup (create, dial, welcome)
class PerfEnd final : private message::Handler {
 public:
  /// The device outlives the end.
  [[nodiscard]] static Result<std::unique_ptr<PerfEnd>> create(PerfDevice& device, const perf_wire::RunHello& run,
                                                               PerfRole role, std::chrono::milliseconds timeout);
  ~PerfEnd() = default;
  PerfEnd(const PerfEnd&) = delete;
  PerfEnd& operator=(const PerfEnd&) = delete;

  /// The client's side of both handshakes. Errors: those of link::dial, and kProtocol.
  [[nodiscard]] Result<void> dial(std::uint16_t port);
  /// The server's: `control` has said the run's hello. The link's connection is awaited; others are sent away.
  [[nodiscard]] Result<void> welcome(link::Incoming& control, link::Listener& listener);

  // The client's rounds, counted from 1.
  [[nodiscard]] Status read(Deadline deadline) noexcept { return link_->read(own_span(), peer_span(), deadline); }
  [[nodiscard]] Status write(Deadline deadline) noexcept { return link_->write(own_span(), peer_span(), deadline); }
  [[nodiscard]] Status ping_pong(std::uint64_t round, Deadline deadline) noexcept;
  [[nodiscard]] Status message(std::uint64_t round, Deadline deadline) noexcept;
  /// Runs `count` large messages, several in flight. `record` takes the ticks of each from start to completion.
  template <class Record>
  [[nodiscard]] Status write_large(std::uint64_t count, Record&& record) noexcept;
  /// Tells the server that this was all, and waits a moment for its answer.
  void say_bye() noexcept;

  /// The server's part of the run, up to the client's bye.
  [[nodiscard]] Status serve() noexcept;

  /// A deadline for the next wait, from a time that was read already.
  [[nodiscard]] Deadline patience(std::uint64_t now) const noexcept {
    return earlier(Deadline::at_ticks(now + timeout_ticks_), end_);
  }
  [[nodiscard]] Deadline patience() const noexcept { return patience(ticks_now()); }
  [[nodiscard]] engine::Counters counters() const noexcept { return loop_->counters(); }

 private:
  PerfEnd(PerfDevice& device, const perf_wire::RunHello& run, PerfRole role, std::chrono::milliseconds timeout);
  void on_message(message::Channel& channel, std::span<const std::byte> body) noexcept override;
  void on_fragment(message::Channel& channel, const message::Fragment& fragment) noexcept override;
  void on_complete(message::Channel& channel, std::uint64_t token, Status status) noexcept override;
  void on_failure(message::Channel& /*channel*/, Status reason) noexcept override { failure_ = reason; }

  [[nodiscard]] message::Options channel_options() const noexcept;
  [[nodiscard]] Result<void> create();
  [[nodiscard]] Result<link::Endpoint> link_endpoint();
  [[nodiscard]] Result<perf_wire::LinkHello> hello_of(const link::Endpoint& remote) const;
  /// Grants the shared memory to the peer and brings the link up.
  [[nodiscard]] Result<void> connect_link(const link::Endpoint& local, const link::Endpoint& remote,
                                          const link::BringUp& how);
  [[nodiscard]] Result<link::Incoming> next_link(link::Listener& listener);

  [[nodiscard]] engine::LocalSpan own_span() const noexcept { return {own_.data(), run_.bytes, own_.lkey()}; }
  [[nodiscard]] engine::RemoteSpan peer_span() const noexcept {
    return {.address = peer_.address, .length = run_.bytes, .rkey = peer_.rkey};
  }
  [[nodiscard]] Status write_mark(std::uint64_t round, Deadline deadline) noexcept;
  [[nodiscard]] Status await_mark(std::uint64_t round, Deadline deadline) noexcept;
  [[nodiscard]] Status send(std::span<const std::byte> body, Deadline deadline) noexcept;
  /// Waits until `done()`; a connection that fails ends it with the reason.
  template <class Done>
  [[nodiscard]] Status await(Done&& done, Deadline deadline) noexcept {
    const Status waited = loop_->wait_until([&] { return done() || failure_ != Status::kOk; }, deadline);
    return failure_ != Status::kOk && !done() ? failure_ : waited;
  }
  /// Reads a byte of the peer's memory, to see that the peer lives.
  [[nodiscard]] Status probe() noexcept;
  [[nodiscard]] Status serve_rounds() noexcept;
  [[nodiscard]] Status await_bye() noexcept;

  PerfDevice& device_;
  const perf_wire::RunHello run_;
  const PerfRole role_;
  const std::uint64_t timeout_ticks_;
  const Deadline end_;  ///< Of all waits: a server is not one client's for ever.

  std::unique_ptr<engine::CompletionLoop> loop_;
  nic::RegisteredArena own_;     ///< What this side's operations are from, or to.
  nic::RegisteredArena shared_;  ///< Where the peer's land.
  nic::Window peer_;
  std::unique_ptr<message::Channel> channel_;
  std::unique_ptr<remote::Link> link_;

  Status failure_ = Status::kOk;
  bool bye_ = false;
  std::uint64_t messages_ = 0;
  std::uint64_t larges_ = 0;     ///< Received.
  std::uint64_t completed_ = 0;  ///< Sent.
  std::uint32_t fresh_ = 0;      ///< Completions not recorded yet; no more than are in flight.
  std::array<std::uint64_t, perf_wire::kMaxInFlight> fresh_ticks_{};
};

template <class Record>
Status PerfEnd::write_large(std::uint64_t count, Record&& record) noexcept {
  const std::uint64_t end = completed_ + count;
  for (std::uint64_t started = completed_; completed_ < end;) {
    while (started < end && started - completed_ < run_.in_flight) {
      const Status status = channel_->start_large({}, own_span(), ticks_now());
      if (status == Status::kAgain) break;
      if (status != Status::kOk) return status;
      ++started;
    }
    const std::uint64_t before = completed_;
    if (const Status waited = await([&] { return completed_ != before; }, patience()); waited != Status::kOk)
      return waited;
    for (; fresh_ != 0; --fresh_) record(fresh_ticks_[fresh_ - 1]);
  }
  return Status::kOk;
}

}  // namespace verbena::programs
