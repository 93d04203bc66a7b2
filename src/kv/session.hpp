// The server's end of one channel: requests of one client to one worker.
#pragma once

#include "channel/connection.hpp"
#include "host/footprint.hpp"
#include "kv/access.hpp"
#include "kv/put_reads.hpp"
#include "kv/statistics.hpp"
#include "kv/store.hpp"
#include "kv/wire.hpp"
#include "node/acceptor.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace verbena::kv {

class Worker;

/// The kind of operation as which a PUT or CAS of a large value is counted.
[[nodiscard]] constexpr OperationKind large_kind(std::uint64_t expected) noexcept {
  return expected == wire::kAnyVersion ? OperationKind::kPutLarge : OperationKind::kCasLarge;
}

/// The server's end of a channel; immovable. \thread owner of the worker's loop, except creation and where said
/// \alloc setup
class Session final : public channel::Handler {
 public:
  /// A session without a channel yet. `client` and the worker's index identify it for counting clients. `permissions`
  /// must outlive it; null: everything is allowed.
  Session(Worker& worker, std::uint64_t client, const Permissions* permissions);
  /// The memory that it allocates, without its channel. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(unsigned depth);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Prepares the connection, which calls this session once attached. Errors: those of Connection::create.
  /// \thread setup
  [[nodiscard]] Result<void> open();
  [[nodiscard]] channel::Connection& connection() noexcept { return *channel_; }
  /// Hands itself to its worker, which destroys it. \thread any
  void join(const node::Acceptor::Stay& stay) noexcept;
  /// Call once the connection is drained: leaves the worker's loop, and lets the acceptor's thread end the connection,
  /// after which the worker's `bury` is called.
  void part() noexcept;
  [[nodiscard]] std::uint64_t client() const noexcept { return client_; }
  /// Whether the client has said that it leaves.
  [[nodiscard]] bool has_left() const noexcept { return has_left_; }

  /// Call when the server stops: answers nothing from now on, and says goodbye after the answers already sent. True:
  /// the client's NIC has the goodbye, or the client is lost. False: call again after the next poll.
  [[nodiscard]] bool leave() noexcept;

  void on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept override;
  void on_fragment(channel::Connection& connection, const channel::Fragment& fragment) noexcept override;
  void on_complete(channel::Connection& connection, const channel::Completion& completion) noexcept override;
  void on_room(channel::Connection& connection) noexcept override;
  void on_end(channel::Connection& connection, Status reason) noexcept override;

 private:
  /// The token of the READs, which are its only operations.
  static constexpr std::uint64_t kReadToken = 0;

  /// An arriving value, in one or several large messages.
  struct LargePut {
    bool is_open = false;
    std::uint32_t id = 0;
    std::uint64_t expected = 0;
    std::uint64_t total = 0;
    std::uint64_t filled = 0;
    std::uint64_t began_ticks = 0;
    Store::Pending pending;
    /// Without memory: why, and its bytes are dropped. Or what came of it, when it went over the old value.
    Store::Change answer;
  };
  /// The front of the large message that is arriving.
  struct Front {
    bool is_complete = false;
    std::size_t have = 0;
    std::array<std::byte, wire::kMaxLargeHeadBytes> bytes;
    wire::LargeFront parsed;
  };

  // For a client with limited rights.
  /// False: the request was refused, or the connection has failed.
  [[nodiscard]] bool may(const wire::Request& request) noexcept;
  [[nodiscard]] Rights missing_for(const wire::Request& request) const noexcept;
  [[nodiscard]] Rights missing_to_write(Key key) const noexcept;
  void get_part(const wire::Request& request) noexcept;
  void reply_part(const wire::ReplyHead& head, const Store::Found& found, std::uint64_t offset) noexcept;
  void refuse(std::uint32_t id, const Store::Change& change, Rights missing = Rights::kWrite) noexcept;
  /// Whether the client may READ the store's memory.
  [[nodiscard]] bool is_exported() const noexcept { return permissions_ == nullptr || permissions_->is_exported; }
  void close_channel() noexcept;
  [[nodiscard]] Owner owner() const noexcept { return permissions_ == nullptr ? kNoOwner : permissions_->owner; }

  void get(const wire::Request& request) noexcept;
  void change(const wire::Request& request) noexcept;
  void open_cell(const wire::Request& request) noexcept;
  // Scans.
  void scan(const wire::Request& request) noexcept;
  [[nodiscard]] std::uint64_t seal_of(const Store::ScanPlace& at, Key prefix) const noexcept;
  [[nodiscard]] bool is_ours(const wire::ScanPlace& at, Key prefix) const noexcept;
  void tell_statistics(std::uint32_t id, StatisticsPart part) noexcept;
  [[nodiscard]] Status take_front(std::span<const std::byte>& bytes) noexcept;
  [[nodiscard]] Status begin_part() noexcept;
  [[nodiscard]] Status append(std::span<const std::byte> bytes) noexcept;
  void put_at_once(std::span<const std::byte> value) noexcept;
  void finish_large() noexcept;
  // Values in the client's memory.
  void put_read(const wire::Request& request) noexcept;
  void begin_reads() noexcept;
  [[nodiscard]] Store::Change reserve_for(const PutReads::Put& put) noexcept;
  void post_reads() noexcept;
  void on_read() noexcept;
  void end_put(Store::Change change) noexcept;
  void reply(const wire::ReplyHead& head, std::span<const std::byte> payload = {}) noexcept;
  /// The same about a value that was found, which may expire.
  void reply_found(wire::ReplyHead head, const Store::Found& found, std::span<const std::byte> payload) noexcept;
  void send_reply(std::span<const std::byte> head, std::span<const std::byte> payload) noexcept;
  void reply_change(std::uint32_t id, Store::Change change, std::uint64_t value_length = 0) noexcept;
  void tell_full(const wire::ReplyHead& head, std::uint64_t value_length) noexcept;
  void look_for_memory(Store::Change& change, std::uint64_t value_length) noexcept;
  [[nodiscard]] wire::ReplyHead outcome_of(std::uint32_t id, Store::Change change, std::uint64_t value_length) noexcept;
  /// Sends the replies that had to wait. True: none is left.
  bool flush() noexcept;
  void put_off(std::span<const std::byte> head, std::span<const std::byte> payload) noexcept;

  Worker& worker_;
  Store& store_;
  const Permissions* permissions_;
  std::unique_ptr<channel::Connection> channel_;
  LargePut large_;
  Front front_;
  PutReads reads_;
  std::uint64_t client_;
  bool is_dead_ = false;
  bool has_left_ = false;
  bool is_leaving_ = false;  ///< The server is stopping.
  /// Brings it to the worker, and at its end once more.
  struct Arrival : engine::Mailbox::Letter {
    Session* session = nullptr;
  } arrival_;
  class Departure final : public node::Acceptor::Leaver {
   public:
    Departure(Session& session, const node::Acceptor::Stay& stay) noexcept : Leaver(stay), session_(session) {}

   private:
    void leave() noexcept override;
    Session& session_;
  };
  std::optional<Departure> departure_;

  // Replies without credit: at most one per request in flight.
  struct Waiting {
    std::size_t length = 0;
    std::array<std::byte, sizeof(wire::ReplyHead) + sizeof(wire::Expiry) + kEagerBytes> bytes;
  };
  std::vector<Waiting> backlog_;
  std::size_t first_waiting_ = 0;
  std::size_t waiting_ = 0;
};

}  // namespace verbena::kv
