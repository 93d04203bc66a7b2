// One connection of the C API: calls of any thread as operations that its loop's owner carries out.
#pragma once

#include "c/inbox.hpp"
#include "c/runtime.hpp"
#include "c/wire.hpp"
#include "link/link.hpp"
#include "message/message.hpp"
#include "nic/registered_arena.hpp"

#include <verbena/rdma.h>
#include <verbena/transport.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace verbena::c {

/// RdmaOptions, checked and owned.
struct Settings {
  Transport transport;
  std::chrono::milliseconds connect_timeout{5000};
  std::chrono::milliseconds timeout{5000};
  unsigned max_connections = 64;
  RdmaRecvMode recv_mode = RDMA_RECV_DISCARD;
  std::size_t window_bytes = std::size_t{1} << 20;
  std::size_t inbox_bytes = std::size_t{1} << 20;
  std::size_t max_message_bytes = std::size_t{64} << 20;
};
/// Errors: kBadArgument, naming the option.
[[nodiscard]] Result<Settings> settings_of(const RdmaOptions& options);

/// A callback in one of its two forms, or none.
template <class Plain, class Full>
struct Callback {
  Plain plain = nullptr;
  Full full = nullptr;
  void* user = nullptr;
  explicit operator bool() const noexcept { return plain != nullptr || full != nullptr; }
};
struct Callbacks {
  Callback<RdmaAcceptCallbackFunc, RdmaConnFunc> accepted;
  Callback<RdmaConnectedCallbackFunc, RdmaConnFunc> connected;
  Callback<RdmaRecvCallbackFunc, RdmaMessageFunc> message;
  Callback<RdmaDisconnectCallbackFunc, RdmaDisconnectFunc> disconnected;
};

/// A call under way. It is its caller's, who waits until it is done.
struct Operation {
  enum class Kind : std::uint8_t { kSend, kReceive, kWrite, kRead };
  Kind kind = Kind::kSend;
  bool has_immediate = false;
  bool tells_peer = false;  ///< Of a write: a message is to follow it.
  bool is_awaited = false;  ///< By another thread than the one that carries it out.
  std::uint32_t immediate = 0;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t length = 0;
  std::size_t offset = 0;     ///< In the peer's window.
  std::size_t started = 0;    ///< Bytes sent, or under way.
  std::size_t finished = 0;   ///< Bytes that have arrived.
  std::uint64_t receipt = 0;  ///< Of its last message, while that is to be waited for.
  RdmaMessage message{};      ///< Of a receive.
  Status status = Status::kOk;
  std::atomic<bool> is_done{false};
  Operation* next = nullptr;
};

/// Operations in the order they came. \thread owner
class OperationQueue {
 public:
  [[nodiscard]] Operation* first() const noexcept { return first_; }
  void push(Operation& operation) noexcept;
  void remove(const Operation& operation) noexcept;

 private:
  Operation* first_ = nullptr;
  Operation* last_ = nullptr;
};

/// What goes with a connection of another API's, and is destroyed with it.
class Companion {
 public:
  virtual ~Companion() = default;
};

/// \thread owner of the runtime's loop, except where said
class Conn : private message::Handler {
 public:
  Conn(const Settings& wanted, const Callbacks& called) : settings(wanted), callbacks(called) {}
  Conn(const Conn&) = delete;
  Conn& operator=(const Conn&) = delete;

  Settings settings;    ///< Before it is connected, its maker's.
  Callbacks callbacks;  ///< The same, and the accept callback's.
  std::unique_ptr<Companion> companion;

  // Setup, in the caller's thread.
  /// Of a client: finds the server and connects, all within `settings.connect_timeout`. What was opened is closed when
  /// it fails.
  [[nodiscard]] Result<void> connect(const std::string& address, std::uint16_t port);
  /// Of a server: answers; then the runtime may adopt it.
  [[nodiscard]] Result<void> accept(std::shared_ptr<Runtime> runtime, link::Incoming& incoming);
  [[nodiscard]] static message::Options channel_options() noexcept;

  /// Before it is connected, or in the accept callback. \thread any
  [[nodiscard]] bool takes_callbacks() const noexcept { return !is_set_up_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool was_connected() const noexcept { return channel_ != nullptr || is_detached_; }
  [[nodiscard]] bool is_connected() const noexcept { return is_live_.load(std::memory_order_acquire); }
  [[nodiscard]] Runtime* runtime() const noexcept { return runtime_.get(); }
  [[nodiscard]] std::span<std::byte> window() const noexcept;
  [[nodiscard]] std::size_t peer_window_bytes() const noexcept { return static_cast<std::size_t>(peer_.window.length); }
  [[nodiscard]] std::uint64_t discarded() const noexcept { return discarded_.load(std::memory_order_relaxed); }

  std::atomic<int> last_code{0};           ///< \thread any
  std::atomic<unsigned> timeout_ms{5000};  ///< \thread any

  /// Carries out a call. \thread any
  [[nodiscard]] Status carry_out(Operation& operation, Deadline deadline) noexcept;
  /// Whether messages are kept for rdmaConnRecv. \thread any
  [[nodiscard]] bool receives() const noexcept { return !callbacks.message && !discards_; }

  // The end. Of a client or a kept connection: `close`, then its destruction; of others `end_in_callback`.
  void keep() noexcept { is_kept_ = true; }
  [[nodiscard]] bool is_kept() const noexcept { return is_kept_; }
  /// The runtime frees it, where `end_in_callback` follows.
  void give_back() noexcept { is_kept_ = false; }
  /// Nothing of it is the runtime's any more. In a callback.
  [[nodiscard]] bool is_detached() const noexcept { return is_detached_; }
  /// Says goodbye, and waits until nothing of it is the runtime's. \thread any but the runtime's
  void close() noexcept;
  /// The runtime frees it after its callback. In a callback.
  void end_in_callback() noexcept;

  // For the runtime.
  /// Attaches it to the loop; an accepted one is set up by its callback.
  void begin() noexcept;
  void progress() noexcept;
  void call_back() noexcept;
  /// The runtime stops: ends with kClosed, and tells the peer.
  void end_with_runtime() noexcept;
  /// The peer knows of the end, or there is nothing to tell, or no time any more.
  [[nodiscard]] bool has_said_goodbye() const noexcept;
  /// Nothing is left to do: it can be detached.
  [[nodiscard]] bool is_over() const noexcept;
  /// When `is_over` is to be asked again.
  [[nodiscard]] Deadline look_again() const noexcept { return linger_; }
  /// Frees the channel; the rest goes with the connection.
  void detach() noexcept;

 protected:
  ~Conn() = default;

 private:
  static constexpr std::size_t kChunks = 8;
  static constexpr std::size_t kChunkBytes = 64 * 1024;
  struct Chunk {
    Operation* operation = nullptr;  ///< Null when nobody waits any more.
    std::size_t at = 0;              ///< In the operation's memory.
    std::size_t length = 0;
    bool is_busy = false;  ///< The NIC may use it.
  };
  struct Memory {
    nic::RegisteredArena bounce;
    nic::RegisteredArena window;
  };

  // message::Handler
  void on_message(message::Channel& channel, std::span<const std::byte> body) noexcept override;
  void on_fragment(message::Channel& channel, const message::Fragment& fragment) noexcept override;
  void on_complete(message::Channel& channel, std::uint64_t token, Status status) noexcept override;
  void on_failure(message::Channel& channel, Status reason) noexcept override;

  [[nodiscard]] RdmaConn& handle() noexcept;
  [[nodiscard]] Result<void> create(const std::shared_ptr<Runtime>& runtime);
  [[nodiscard]] Result<link::Endpoint> describe();
  /// The peer's part of the handshake; the window is its to use from then on.
  [[nodiscard]] Result<void> meet(const link::Endpoint& remote);
  [[nodiscard]] Result<void> connect_over(const std::string& address, std::uint16_t port, Deadline deadline);
  void undo() noexcept;

  [[nodiscard]] Status carry_out_here(Operation& operation, Deadline deadline) noexcept;
  void start(Operation& operation) noexcept;
  void cancel(Operation& operation) noexcept;
  void finish(Operation& operation, Status status) noexcept;
  [[nodiscard]] OperationQueue& queue_of(const Operation& operation) noexcept;
  void end(Status reason) noexcept;
  /// The same, and the peer is told.
  void say_goodbye(Status reason) noexcept;

  // Sending.
  [[nodiscard]] bool has_room(std::size_t piece) const noexcept;
  [[nodiscard]] bool send(wire::Head head, std::span<const std::byte> piece) noexcept;
  /// The same for the last message of an operation.
  [[nodiscard]] bool send_last(Operation& operation, wire::Head head, std::span<const std::byte> piece) noexcept;
  void on_receipt(std::uint64_t receipt, Status status) noexcept;
  void send_messages() noexcept;
  void send_what_is_due() noexcept;
  [[nodiscard]] bool is_telling_due() const noexcept { return inbox_->consumed() - told_ >= inbox_->capacity() / 4; }

  // Transfers.
  void start_transfers() noexcept;
  /// False: no chunk is free, or the channel is full.
  [[nodiscard]] bool start_chunk(Operation& operation) noexcept;
  [[nodiscard]] bool tell_of_write(Operation& operation) noexcept;
  [[nodiscard]] std::byte* memory_of(std::size_t chunk) const noexcept {
    return memory_->bounce.data() + chunk * kChunkBytes;
  }

  // Receiving.
  [[nodiscard]] bool accept_piece(const wire::Head& head, std::span<const std::byte> piece) noexcept;
  void count_discarded(const wire::Head& head, std::size_t piece) noexcept;
  void feed_receives() noexcept;
  void feed(Operation& operation) noexcept;
  [[nodiscard]] RdmaMessage written(const wire::Head& head) const noexcept;
  /// The next message for the callback, in `partial_`; false when none is whole.
  [[nodiscard]] bool assemble(RdmaMessage& message) noexcept;

  std::shared_ptr<Runtime> runtime_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<message::Channel> channel_;
  std::unique_ptr<Inbox> inbox_;
  wire::Hello peer_;
  std::size_t longest_piece_ = 0;

  OperationQueue sends_;
  OperationQueue transfers_;
  OperationQueue receives_;
  std::array<Chunk, kChunks> chunks_{};

  /// Nobody polls between calls, and the NIC hands on only while somebody does.
  bool wants_receipts_ = false;
  std::uint64_t last_receipt_ = 0;
  std::uint64_t sent_ = 0;           ///< Bytes of records, in all.
  std::uint64_t peer_consumed_ = 0;  ///< Of these, as the peer claims.
  std::uint64_t told_ = 0;           ///< Of inbox_->consumed().
  std::uint64_t in_total_ = 0;       ///< Of the message that is arriving; 0: none.
  std::uint64_t in_next_ = 0;        ///< Offset of its next piece.
  std::vector<std::byte> partial_;   ///< Of a message that was not taken whole.

  Status reason_ = Status::kOk;  ///< Why it is dead.
  bool discards_ = false;
  bool is_kept_ = false;
  bool has_announced_ = false;
  bool has_told_end_ = false;
  bool is_leaving_ = false;
  bool is_goodbye_due_ = false;
  bool is_answer_awaited_ = false;
  bool is_goodbye_seen_ = false;
  Deadline linger_ = Deadline::never();
  bool is_detached_ = false;  ///< Set by Runtime::tell, where there is a thread.
  std::atomic<bool> is_set_up_{false};
  std::atomic<bool> is_live_{false};
  std::atomic<bool> is_used_{false};  ///< With Driver::kCaller: a call is under way.
  std::atomic<std::uint64_t> discarded_{0};
};

}  // namespace verbena::c

/// What users hold.
struct verbena_RdmaConn final : verbena::c::Conn {
  using Conn::Conn;
  ~verbena_RdmaConn() = default;
  bool is_client = false;
};
