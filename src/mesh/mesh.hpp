// A process of a mesh: its lanes, which other processes are connected, and the thread that looks for them.
#pragma once

#include "base/fork.hpp"
#include "base/threads.hpp"
#include "link/fabric.hpp"
#include "mesh/lane.hpp"
#include "mesh/wire.hpp"
#include "node/acceptor.hpp"
#include "node/device.hpp"

#include <verbena/mesh.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::mesh {

/// Which processes are here, in which of their lives, over which lanes. \thread any
class Roster {
 public:
  Roster(unsigned processes, unsigned threads);

  /// Reserves a lane for a life of `id`. Errors: kRejected (an older life), kBusy (another life, or this one, has it:
  /// its connection must end first).
  [[nodiscard]] Result<void> enter(unsigned id, unsigned thread, std::uint64_t incarnation);
  /// The lane's connection is up.
  void joined(unsigned id, unsigned thread, std::uint64_t incarnation) noexcept;
  /// The lane's connection has ended, or could not be made.
  void left(unsigned id, unsigned thread, std::uint64_t incarnation) noexcept;
  /// Notes a failed attempt to connect with `id`. A reason that no further attempt can change is kept, whatever later
  /// attempts report, until `id` joins. True: the reason is new.
  bool failed(unsigned id, const Error& why) noexcept;
  [[nodiscard]] bool is_free(unsigned id, unsigned thread) const noexcept;
  /// Ids that miss a lane.
  [[nodiscard]] std::vector<unsigned> missing(unsigned self) const;
  [[nodiscard]] Error last_failure(unsigned id) const noexcept;

 private:
  enum class Place : std::uint8_t { kFree, kComing, kHere };
  struct Entry {
    std::uint64_t incarnation = 0;
    std::vector<Place> lanes;
    Error why;
  };
  mutable Mutex mutex_;
  std::vector<Entry> entries_;
};

/// This process's windows, in the order they were published. \thread any
class PublishedWindows {
 public:
  struct Window {
    std::string name;
    rdma::Window window;
  };
  [[nodiscard]] Result<void> add(std::string_view name, const rdma::Window& window);
  [[nodiscard]] std::size_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] wire::WindowFrame frame(std::size_t index) const noexcept;

 private:
  std::atomic<std::size_t> count_{0};
  mutable Mutex mutex_;
  std::vector<Window> windows_;
};

/// Owns the memory of regions, which registers and removes it by itself. \thread any
struct RegionOwner {
  std::shared_ptr<node::Device> device;
};

class MeshOfProcesses final : public Mesh, private node::Acceptor::Host {
 public:
  MeshOfProcesses(const Options& options, std::unique_ptr<Carrier> carrier);
  ~MeshOfProcesses() override;
  static void operator delete(MeshOfProcesses* mesh, std::destroying_delete_t) noexcept { delete_unless_forked(mesh); }
  [[nodiscard]] Result<void> open();

  // Mesh
  [[nodiscard]] const Options& options() const noexcept override { return options_; }
  [[nodiscard]] Lane& lane(unsigned thread) noexcept override { return *lanes_.at(thread); }
  [[nodiscard]] Result<std::span<std::byte>> allocate(std::size_t bytes) override;
  [[nodiscard]] Result<void> add(std::span<std::byte> memory, rdma::Access access) override;
  [[nodiscard]] Result<void> publish(std::string_view name, std::span<std::byte> memory) override;
  [[nodiscard]] const char* description() const noexcept override { return description_.c_str(); }

  // For lanes.
  [[nodiscard]] const std::shared_ptr<node::Device>& device() const noexcept { return device_; }
  [[nodiscard]] const PublishedWindows& windows() const noexcept { return windows_; }
  /// The owners of this process's memory: the mesh, and what `regions` returns.
  [[nodiscard]] session::Scope scope() const noexcept { return {.self = this, .node = regions_.get()}; }
  /// The owner of memory that may outlive the mesh.
  [[nodiscard]] const std::shared_ptr<RegionOwner>& regions() const noexcept { return regions_; }
  void peer_ended(const Peer& peer, unsigned thread) noexcept;

 private:
  class Guest;
  [[nodiscard]] Result<void> listen(Deadline deadline);
  [[nodiscard]] Result<void> await_all(Deadline deadline);
  [[nodiscard]] Result<std::unique_ptr<node::Acceptor::Guest>> welcome(
      std::unique_ptr<link::Handshake>& handshake) override;
  void refused() noexcept override;
  [[nodiscard]] wire::Hello hello(unsigned thread) const noexcept;
  [[nodiscard]] link::FabricOptions fabric_options(link::Role role, std::string_view address,
                                                   std::uint16_t port) const noexcept;
  /// Dials processes with lower ids, where a lane is free, until the mesh ends.
  void dial_peers() noexcept;
  /// How many of the missing processes with lower ids were found.
  enum class Found : std::uint8_t { kNone, kSome, kAll };
  [[nodiscard]] Found dial_all() noexcept;
  [[nodiscard]] Result<void> dial(unsigned id, unsigned thread);
  void hand_over(std::unique_ptr<Peer> peer, unsigned thread) noexcept;
  void look_again() noexcept;

  const Options options_;
  const std::unique_ptr<Carrier> carrier_;
  std::uint64_t incarnation_ = 0;
  std::uint64_t job_ = 0;
  std::vector<uid_t> users_;
  std::unique_ptr<link::Fabric> fabric_;
  std::shared_ptr<node::Device> device_;
  std::shared_ptr<RegionOwner> regions_;
  Roster roster_;
  PublishedWindows windows_;
  std::string description_;
  std::vector<std::unique_ptr<LaneOfMesh>> lanes_;
  node::Acceptor* acceptor_ = nullptr;
  std::uint64_t door_ = 0;
  std::uint16_t port_ = 0;
  Deadline join_deadline_ = Deadline::never();
  std::atomic<bool> has_joined_{false};
  std::optional<std::pair<unsigned, Error>> refusal_;  ///< The acceptor's: which process it refuses, and why.
  Mutex mutex_;                                        ///< Guards the two below.
  bool is_ending_ = false;
  bool must_look_again_ = false;
  Condition changed_;
  Thread dialer_;  // Last: reads everything above.
};

}  // namespace verbena::mesh
