// A lane of a process: the connections that one thread polls.
#pragma once

#include "engine/fifo.hpp"
#include "mesh/peer.hpp"
#include "node/shard.hpp"
#include "session/registrations.hpp"

#include <verbena/mesh.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace verbena::mesh {

class MeshOfProcesses;

/// Values of Lane::gather. A process may be at most one call ahead of another, so there are two sets.
class Gathering {
 public:
  explicit Gathering(unsigned processes) : sets_{Set(processes), Set(processes)} {}
  /// Starts the next call and returns its number.
  [[nodiscard]] std::uint32_t begin() noexcept {
    is_under_way_ = true;
    return ++number_;
  }
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  /// For a process that rejoins: skips the calls that the others have made.
  void skip_to(std::uint32_t number) noexcept { number_ = number; }
  /// Takes a peer's value. False: no call expects it.
  [[nodiscard]] bool take(unsigned peer, const wire::GatherFrame& frame) noexcept;
  [[nodiscard]] bool has(unsigned peer) const noexcept { return set().is_here[peer] != 0; }
  [[nodiscard]] const wire::GatherFrame& value(unsigned peer) const noexcept { return set().values[peer]; }
  /// Ends the call.
  void end() noexcept;

 private:
  struct Set {
    explicit Set(unsigned processes) : values(processes), is_here(processes) {}
    std::vector<wire::GatherFrame> values;
    std::vector<std::uint8_t> is_here;
  };
  [[nodiscard]] const Set& set() const noexcept { return sets_[number_ % 2]; }
  std::array<Set, 2> sets_;
  std::uint32_t number_ = 0;
  bool is_under_way_ = false;
};

/// A lane; immovable. \thread owner, except where it says any or setup
class LaneOfMesh final : public Lane {
 public:
  /// Errors: those of Shard::create. \thread setup
  [[nodiscard]] static Result<std::unique_ptr<LaneOfMesh>> create(MeshOfProcesses& mesh, unsigned thread);
  ~LaneOfMesh() override;

  // Lane
  [[nodiscard]] unsigned thread() const noexcept override { return thread_; }
  [[nodiscard]] bool is_here(unsigned peer) const noexcept override;
  [[nodiscard]] std::span<std::byte> reserve(unsigned peer) noexcept override;
  [[nodiscard]] Status commit(unsigned peer, std::span<std::byte> message, std::uint64_t cookie,
                              std::optional<std::uint32_t> immediate) noexcept override;
  Status cancel(unsigned peer, std::span<std::byte> message) noexcept override;
  [[nodiscard]] Status send(unsigned peer, std::span<const std::byte> message, std::uint64_t cookie,
                            std::optional<std::uint32_t> immediate) noexcept override;
  [[nodiscard]] Result<Window> find(unsigned peer, std::string_view name, Deadline deadline) override;
  [[nodiscard]] Status write(const Window& to, std::uint64_t offset, std::span<const std::byte> from,
                             std::uint64_t cookie, std::optional<std::uint32_t> immediate) noexcept override;
  [[nodiscard]] Status read(const Window& from, std::uint64_t offset, std::span<std::byte> to,
                            std::uint64_t cookie) noexcept override;
  [[nodiscard]] Status fetch_add(const Window& at, std::uint64_t offset, std::uint64_t add,
                                 std::uint64_t cookie) noexcept override;
  [[nodiscard]] Status compare_swap(const Window& at, std::uint64_t offset, std::uint64_t expected,
                                    std::uint64_t desired, std::uint64_t cookie) noexcept override;
  void flush() noexcept override;
  void flush(unsigned peer) noexcept override;
  [[nodiscard]] std::size_t poll(std::span<Completion> out, Which which) noexcept override;
  [[nodiscard]] std::size_t wait(std::span<Completion> out, Deadline deadline, Which which) noexcept override;
  Status release(const Completion& message) noexcept override;
  [[nodiscard]] Result<void> gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                    Deadline deadline) override;
  [[nodiscard]] Counters counters() const noexcept override { return shard_->loop().counters(); }

  // For the mesh.
  /// Hands over a connected peer to the lane. \thread any
  void take(std::unique_ptr<Peer> peer) noexcept;
  [[nodiscard]] Result<std::unique_ptr<Peer>> make_peer() { return Peer::create(*this, peer_options_); }
  [[nodiscard]] node::Shard& shard() noexcept { return *shard_; }
  [[nodiscard]] engine::CompletionLoop& loop() noexcept { return shard_->loop(); }
  /// Polls, sends peers what they have to know, and destroys spent ones.
  void turn() noexcept;
  /// Tells the peers that this process has found all others.
  void say_ready() noexcept;
  /// All others are here: from now on this process counts calls of `gather` by itself.
  void joined() noexcept { has_joined_ = true; }
  /// Ids of peers that are not ready, or do not know yet that this process is.
  [[nodiscard]] std::vector<unsigned> not_ready() const;
  // The end, in this order, for all lanes of a process.
  /// Sends peers everything they still have to know.
  void tell_all(Deadline deadline) noexcept;
  /// Says goodbye to all peers. Returns the time by which each goodbye has reached the peer's NIC or is given up.
  [[nodiscard]] Deadline say_goodbye() noexcept;
  void await_goodbyes(Deadline deadline) noexcept;

  // For who has the lane to itself.
  bool has_owner = false;  ///< Somebody takes all of its completions. \thread setup
  [[nodiscard]] MeshOfProcesses& mesh() noexcept { return mesh_; }
  /// Connections at a time, of earlier lives too.
  [[nodiscard]] std::size_t most_lives() const noexcept { return lives_.capacity(); }

  // For its peers.
  void has_ended(Record& record, Which which) noexcept { (which == Which::kSends ? sends_ : receives_).push(record); }
  /// Puts the peer on the list of those to be told something in one of the next turns.
  void list(Peer& peer) noexcept;
  /// `gathers`: calls of Lane::gather that the peer had made when it sent this.
  void on_ready(Peer& peer, std::uint32_t gathers) noexcept;
  void on_gather(Peer& peer, std::span<const std::byte> body) noexcept;
  void on_peer_end(Peer& peer) noexcept;
  /// A call that returned kAgain may be tried again.
  void on_room() noexcept { has_room_ = true; }
  [[nodiscard]] const session::RegisteredMemory* memory_at(std::uint64_t address, std::uint64_t length) noexcept;

 private:
  LaneOfMesh(MeshOfProcesses& mesh, unsigned thread);
  [[nodiscard]] Result<void> open();
  void adopt(Peer& peer) noexcept;
  /// The connected peer, or why there is none.
  [[nodiscard]] Peer* find_peer(unsigned peer, Status& why) noexcept;
  /// The life of a peer that a message came from; null: it is gone, with all of its messages.
  [[nodiscard]] Peer* find_life(const Completion& message) noexcept;
  [[nodiscard]] Status check_length(const char* call, std::size_t bytes) const noexcept;
  /// The same for a range of a window; sets `place` to it.
  [[nodiscard]] Peer* find_place(const char* call, const Window& window, std::uint64_t offset, std::uint64_t length,
                                 channel::RemoteSpan& place, Status& why) noexcept;
  [[nodiscard]] Status change(const char* call, const Window& at, std::uint64_t offset, const channel::Change& change,
                              std::uint64_t cookie) noexcept;
  [[nodiscard]] channel::LocalSpan local(std::span<const std::byte> bytes) noexcept;
  /// Sends peers what they have to know, and destroys spent ones.
  void tend() noexcept;
  [[nodiscard]] std::size_t take_records(engine::Fifo<Record>& from, std::span<Completion> out) noexcept;
  [[nodiscard]] std::size_t take_ended(std::span<Completion> out, Which which) noexcept;
  void tell_listed() noexcept;
  [[nodiscard]] Status tell(Peer& peer) noexcept;
  [[nodiscard]] bool is_ready_with(const Peer& peer) const noexcept;
  void reap() noexcept;
  /// Sends the frame to all processes and waits for all of theirs.
  [[nodiscard]] Result<void> exchange(const wire::GatherFrame& frame, Deadline deadline);

  MeshOfProcesses& mesh_;
  const unsigned thread_;
  PeerOptions peer_options_;
  std::unique_ptr<node::Shard> shard_;
  std::vector<Peer*> peers_;     ///< By id; null: not here. An entry may have ended.
  std::vector<Status> reasons_;  ///< Why a peer is not here; kNotFound: it never was.
  std::uint64_t last_life_ = 0;
  std::vector<std::unique_ptr<Peer>> lives_;  ///< All peers, earlier lives too.
  engine::Fifo<Record> sends_;
  engine::Fifo<Record> receives_;
  engine::Fifo<Peer> listed_;
  std::size_t windows_seen_ = 0;  ///< How many of this process's windows peers have been listed for.
  bool says_ready_ = false;
  bool has_joined_ = false;
  bool has_room_ = false;   ///< Room for a call that returned kAgain, not yet reported to the user.
  bool has_spent_ = false;  ///< Some peer may be spent.
  std::optional<session::RegisteredMemory> last_memory_;
  std::uint64_t last_generation_ = 0;
  std::optional<Gathering> gathering_;  ///< On lane 0 only.
};

}  // namespace verbena::mesh
