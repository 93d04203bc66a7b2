// One lane's connection to one life of a peer.
#pragma once

#include "channel/connection.hpp"
#include "engine/fifo.hpp"
#include "engine/mailbox.hpp"
#include "mesh/wire.hpp"

#include <verbena/mesh.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::mesh {

class LaneOfMesh;
class Peer;

/// Something a lane reports to its user, in use from its start until the user takes it; a message until it is given
/// back.
struct Record {
  enum class State : std::uint8_t { kFree, kUnderWay, kEnded, kHeld };
  Record* next = nullptr;
  Peer* peer = nullptr;
  Completion completion;
  std::uint32_t slot = 0;        ///< A message's receive, as Connection::keep_message returned it.
  std::uint32_t generation = 0;  ///< Distinguishes the messages that this record has held.
  std::uint8_t parts = 0;        ///< For an operation that has not ended: itself, and the message after it.
  State state = State::kFree;
};

/// Options for all connections of a lane.
struct PeerOptions {
  /// \thread any
  [[nodiscard]] static PeerOptions of(const Options& options) noexcept;

  channel::Options channel;
  std::uint32_t operations = 0;
  std::uint32_t batch = 1;
};

/// A connection to one life of a peer; immovable. \thread owner of the lane, except where it says setup  \alloc setup
class Peer final : public channel::Handler {
 public:
  /// Errors: those of Connection::create. \thread setup
  [[nodiscard]] static Result<std::unique_ptr<Peer>> create(LaneOfMesh& lane, const PeerOptions& options);
  /// The memory that `create` allocates. \thread any
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits, const PeerOptions& options);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Sets who the peer is. \thread setup
  void meet(unsigned id, std::uint64_t incarnation) noexcept {
    id_ = id;
    incarnation_ = incarnation;
  }
  [[nodiscard]] unsigned id() const noexcept { return id_; }
  [[nodiscard]] std::uint64_t incarnation() const noexcept { return incarnation_; }
  [[nodiscard]] channel::Connection& connection() noexcept { return *connection_; }
  [[nodiscard]] LaneOfMesh& lane() noexcept { return lane_; }
  /// The lane registers the peer under the number `life`; from now on it can be posted to.
  void enter(std::uint64_t life) noexcept;
  [[nodiscard]] std::uint64_t life() const noexcept { return life_; }
  /// The message that a handle names; null: the user holds no such message.
  [[nodiscard]] Record* find_held(const Completion::Handle& handle) noexcept;
  /// The life that a handle names.
  [[nodiscard]] static std::uint64_t life_of(const Completion::Handle& handle) noexcept {
    return handle.place >> kSlotBits;
  }
  /// kOk, or the reason why it has ended.
  [[nodiscard]] Status reason() const noexcept { return reason_; }
  /// Whether nobody needs it any more: it has ended, and the user has taken and given back everything it reported.
  [[nodiscard]] bool is_spent() const noexcept { return has_ended_ && records_ == 0 && reserved_ == 0; }

  [[nodiscard]] std::span<std::byte> reserve() noexcept;
  [[nodiscard]] bool is_reserved(std::span<const std::byte> message) const noexcept;
  void cancel(std::span<std::byte> message) noexcept;
  [[nodiscard]] Status commit(std::span<std::byte> message, std::uint64_t cookie,
                              std::optional<std::uint32_t> immediate) noexcept;
  [[nodiscard]] Status send(std::span<const std::byte> message, std::uint64_t cookie,
                            std::optional<std::uint32_t> immediate) noexcept;
  [[nodiscard]] Status write(const channel::LocalSpan& from, const channel::RemoteSpan& to, std::uint64_t cookie,
                             std::optional<std::uint32_t> immediate) noexcept;
  [[nodiscard]] Status read(const channel::LocalSpan& to, const channel::RemoteSpan& from,
                            std::uint64_t cookie) noexcept;
  [[nodiscard]] Status change(const channel::Change& change, const channel::RemoteSpan& word,
                              std::uint64_t cookie) noexcept;
  void flush() noexcept { connection_->flush(); }
  void give_back(Record& message) noexcept;
  /// Call when the user has taken the completion.
  void was_taken(Record& record) noexcept;

  /// Sends the peer what it has to know. kAgain: call again after a poll.
  [[nodiscard]] Status tell_ready(std::uint32_t gathers) noexcept;
  [[nodiscard]] Status tell(std::span<const std::byte> frame) noexcept { return connection_->send(frame); }
  /// The same, at most two at a time, for frames after which this process may not poll for long: a software NIC moves
  /// frames on only while this side polls.
  [[nodiscard]] Status tell_for_sure(std::span<const std::byte> frame) noexcept;
  /// Whether the peer's NIC has those frames, or the connection has ended.
  [[nodiscard]] bool is_told() const noexcept { return untold_ == 0; }
  /// Sends the messages that wait behind their WRITEs. kAgain: some are still waiting.
  [[nodiscard]] Status send_notices() noexcept;

  /// A window of the peer, by its name. `find` returns null if the peer has published none of that name.
  struct Published {
    std::string name;
    rdma::Window window;
    bool is_usable = false;  ///< The connection has imported it.
  };
  [[nodiscard]] Published* find(std::string_view name) noexcept;

  void leave() noexcept;

  // For the lane.
  Peer* next = nullptr;          ///< In the lane's list of peers that must be told something.
  bool is_listed = false;        ///< Whether it is in that list.
  std::size_t windows_told = 0;  ///< How many of this process's windows the peer knows.
  bool owes_ready = false;
  bool is_ready = false;  ///< The peer has found all others.
  struct Arrival : engine::Mailbox::Letter {
    Peer* peer = nullptr;
  };
  Arrival arrival;

  void on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept override;
  void on_complete(channel::Connection& connection, const channel::Completion& completion) noexcept override;
  void on_room(channel::Connection& connection) noexcept override;
  void on_end(channel::Connection& connection, Status reason) noexcept override;

 private:
  /// Bits of a handle's place for the receive; the life is above them.
  static constexpr unsigned kSlotBits = 16;
  static_assert(channel::wire::receives_for(channel::wire::kMaxDepth) < 1u << kSlotBits);
  Peer(LaneOfMesh& lane, const PeerOptions& options);
  [[nodiscard]] static std::byte* head_of(std::span<const std::byte> message) noexcept {
    return const_cast<std::byte*>(message.data()) - sizeof(wire::Head);
  }
  /// Starts an operation; null: too many are in flight, or one that it must not overtake is waiting.
  [[nodiscard]] Record* begin(Completion::Kind kind, std::uint64_t cookie, std::span<std::byte> bytes) noexcept;
  [[nodiscard]] std::uint64_t token_of(const Record& record) const noexcept {
    return static_cast<std::uint64_t>(&record - operations_.data());
  }
  /// Ends a start: `status` says whether the operation was started.
  Status started(Record* record, Status status) noexcept;
  void part_ended(Record& record, Status status) noexcept;
  void free(Record& record) noexcept;
  [[nodiscard]] Status send_notice(Record& record) noexcept;
  /// Keeps the receive of the message being handled, and reports to the user what has arrived.
  void arrived(Completion::Kind kind, std::span<std::byte> bytes, std::optional<std::uint32_t> immediate) noexcept;
  void on_message_of_user(const wire::Head& head, std::span<const std::byte> body) noexcept;
  [[nodiscard]] bool on_window(std::span<const std::byte> body) noexcept;
  [[nodiscard]] bool on_written(std::span<const std::byte> body) noexcept;

  LaneOfMesh& lane_;
  const PeerOptions options_;
  unsigned id_ = 0;
  std::uint64_t incarnation_ = 0;
  std::uint64_t life_ = 0;
  std::uint32_t untold_ = 0;                ///< Frames of `tell_for_sure` in flight.
  std::uint32_t posts_since_doorbell_ = 0;  ///< Posts since the last doorbell, with a batch.
  std::unique_ptr<channel::Connection> connection_;
  std::vector<Record> arrivals_;  ///< One per receive: messages, and arrivals by a WRITE.
  std::vector<Record> operations_;
  engine::Fifo<Record> free_;
  engine::Fifo<Record> notices_;  ///< Records whose message waits, in the order of their WRITEs.
  std::uint32_t records_ = 0;     ///< In use.
  std::uint32_t reserved_ = 0;    ///< Messages that the user is writing.
  std::array<Record, 2> news_;    ///< The peer has joined; it has left.
  std::vector<Published> windows_;
  Status reason_ = Status::kOk;
  bool has_ended_ = false;
};

}  // namespace verbena::mesh
