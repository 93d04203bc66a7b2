// The state of a typed lane: what was started on it, with each peer in order, and the messages that nobody has taken.
#pragma once

#include "api/cxx/started.hpp"
#include "engine/fifo.hpp"
#include "mesh/lane.hpp"

#include <verbena/typed_mesh.hpp>

#include <chrono>
#include <cstdint>
#include <vector>

namespace verbena::typed::detail {

/// \thread as StartedOperations
class MeshLaneState final : public StartedOperations, public coroutine::detail::Driven {
 public:
  MeshLaneState(mesh::LaneOfMesh& lane, const MeshLaneOptions& options);

  [[nodiscard]] Started start(const MeshRequest& request) noexcept;
  [[nodiscard]] mesh::LaneOfMesh& lane() noexcept { return lane_; }
  [[nodiscard]] Deadline default_deadline() const noexcept override { return Deadline::after(timeout_); }
  using StartedOperations::settle;
  /// Don't touch this object afterwards.
  void close() noexcept;

  // --- for coroutines. \thread their loop's
  [[nodiscard]] coroutine::detail::Driven* driven() noexcept override { return this; }
  void look() noexcept override { take_in(Deadline::now()); }
  void sleep(Deadline deadline) noexcept override { take_in(deadline); }
  void wake() noexcept override { lane_.loop().wake(); }

 private:
  using Kind = MeshRequest::Kind;
  static constexpr std::chrono::seconds kDrain{2};
  /// Polls of one look: a peer that sends all the time keeps nobody here.
  static constexpr int kPolls = 4;

  struct Call {
    MeshRequest request{.call = "", .kind = Kind::kFlush};
    mesh::Window window;
    std::uint64_t number = 0;  ///< Among those with the peer.
    std::uint64_t left = 0;    ///< kFlush: operations before it that are not complete.
    bool is_posted = false;    ///< The lane has it.
    Call* next = nullptr;
  };
  /// A message of a peer that nobody has taken yet.
  struct Arrival {
    mesh::Completion completion;
    Arrival* next = nullptr;
  };
  struct Peer {
    engine::Fifo<Call> starting;  ///< Without room or credit so far.
    engine::Fifo<Call> receiving;
    engine::Fifo<Call> flushing;
    engine::Fifo<Arrival> arrived;
    Status gone = Status::kOk;  ///< Why it is not here.
    std::uint64_t last_number = 0;
    std::uint64_t under_way = 0;  ///< Operations but receives and flushes.
    bool is_stalled = false;      ///< In stalled_.
    Peer* next = nullptr;
  };

  ~MeshLaneState() override = default;
  void collect_now() noexcept override { (void)poll(); }
  /// How many operations have ended.
  std::size_t poll() noexcept;
  Status collect_until(std::uint32_t slot, Deadline deadline) noexcept override;
  void take_in(Deadline deadline) noexcept;

  [[nodiscard]] Status check(const MeshRequest& request) const noexcept;
  [[nodiscard]] Status begin(Call& call) noexcept;
  [[nodiscard]] Status begin_in_order(Call& call, Peer& peer) noexcept;
  [[nodiscard]] Status post(Call& call) noexcept;
  void start_stalled() noexcept;
  void on_completion(const mesh::Completion& completion) noexcept;
  void on_operation(const mesh::Completion& completion) noexcept;
  void on_arrival(const mesh::Completion& completion) noexcept;
  void on_left(Peer& peer, Status reason) noexcept;
  /// Gives receives what has arrived.
  void feed(Peer& peer) noexcept;
  [[nodiscard]] End take(const Call& call, const mesh::Completion& message) noexcept;
  void drop(Peer& peer, Arrival& arrival) noexcept;
  void drop_abandoned_receives() noexcept;
  /// Ends an operation that counts for flushes.
  void end_operation(Call& call, const End& end) noexcept;
  void finish(Call& call, const End& end) noexcept;
  [[nodiscard]] std::uint32_t slot_of(const Call& call) const noexcept {
    return static_cast<std::uint32_t>(&call - calls_.data());
  }

  mesh::LaneOfMesh& lane_;
  const std::chrono::milliseconds timeout_;
  std::vector<Call> calls_;  ///< By slot.
  std::vector<Peer> peers_;
  std::vector<Arrival> arrivals_;  ///< One for each receive of all lives of all peers.
  engine::Fifo<Arrival> free_;
  engine::Fifo<Peer> stalled_;  ///< With something in `starting`.
  std::size_t ended_ = 0;       ///< Operations, in the look at hand.
  bool is_closed_ = false;
};

}  // namespace verbena::typed::detail
