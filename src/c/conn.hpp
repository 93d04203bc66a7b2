// One connection of the C API: calls of any thread as operations that its loop's owner carries out.
#pragma once

#include "base/exclusive.hpp"
#include "c/inbox.hpp"
#include "c/runtime.hpp"
#include "c/wire.hpp"
#include "link/link.hpp"
#include "message/message.hpp"
#include "nic/registered_arena.hpp"
#include "remote/physical_table.hpp"

#include <verbena/rdma.h>
#include <verbena/transport.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::c {

/// RdmaOptions, checked and owned.
struct Settings {
  Transport transport;
  std::chrono::milliseconds connect_timeout{5000};
  std::chrono::milliseconds timeout{5000};
  unsigned max_connections = 64;
  RdmaRecvMode recv_mode = RDMA_RECV_DISCARD;
  void* window = nullptr;  ///< The user's own; null: allocated.
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
  Callback<RdmaWriteCallbackFunc, RdmaCompletionFunc> written;
  Callback<RdmaReadCallbackFunc, RdmaCompletionFunc> read;
  /// Of a client: a thread of its own is to call them.
  [[nodiscard]] bool any() const noexcept { return message || connected || disconnected || written || read; }
};

/// What a call asks for.
struct Request {
  enum class Kind : std::uint8_t { kSend, kReceive, kWrite, kRead, kAtomic, kAsk, kTake };
  /// Of a transfer: what the NIC reads and writes on this side.
  enum class Local : std::uint8_t {
    kAny,        ///< Chunks of ours, with a copy.
    kRegistered  ///< The user's memory, registered as `lkey`.
  };
  /// Of a transfer: what `remote` is.
  enum class Remote : std::uint8_t { kDefaultWindow, kAddress, kPhysical };
  Kind kind = Kind::kSend;
  Local local = Local::kAny;
  Remote space = Remote::kDefaultWindow;
  bool has_immediate = false;
  bool tells_peer = false;                   ///< Of a write: a message is to follow it.
  wire::Kind wire_kind = wire::Kind::kData;  ///< Of a send.
  std::uint32_t immediate = 0;               ///< Of an ask without a name: the key.
  const std::byte* from = nullptr;           ///< Of an ask: the name.
  std::byte* to = nullptr;
  std::size_t length = 0;
  std::uint64_t remote = 0;  ///< Offset, address or physical address.
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;  ///< With Remote::kAddress.
  message::Change change;  ///< Of an atomic, whose old value comes to `to`.
};

/// A call under way. It is its caller's, who waits until it is done; or the connection's, which was started.
struct Operation : Request {
  bool is_awaited = false;      ///< By another thread than the one that carries it out.
  bool is_started = false;      ///< Nobody waits: its completion is kept.
  bool is_absent = false;       ///< Of an ask: the peer has said so, so far.
  bool is_given_up = false;     ///< Its caller's time is over; what is left is that the NIC lets go of its memory.
  std::uint32_t pieces = 0;     ///< With the NIC, in the user's memory.
  std::uint64_t cookie = 0;     ///< Of what was started.
  std::size_t started = 0;      ///< Bytes sent, or under way.
  std::size_t finished = 0;     ///< Bytes that have arrived.
  std::uint64_t receipt = 0;    ///< Of its last message, while that is to be waited for; of an ask its number.
  RdmaMessage message{};        ///< Of a receive.
  wire::Found found{};          ///< Of an ask.
  RdmaCompletion completion{};  ///< Of a take.
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

/// Completions of what was started, until they are taken. \thread owner
class Completions {
 public:
  static constexpr std::size_t kMost = 64;
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  void push(const RdmaCompletion& completion) noexcept { ring_[(first_ + count_++) % kMost] = completion; }
  [[nodiscard]] RdmaCompletion pop() noexcept {
    --count_;
    return ring_[first_++ % kMost];
  }

 private:
  std::array<RdmaCompletion, kMost> ring_{};
  std::size_t first_ = 0;
  std::size_t count_ = 0;
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
  [[nodiscard]] std::shared_ptr<Runtime> shared_runtime() const noexcept { return runtime_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept;
  [[nodiscard]] const RdmaMemory* window_memory() const noexcept { return window_; }
  [[nodiscard]] const nic::Window& peer_window() const noexcept { return peer_.window; }
  [[nodiscard]] std::size_t peer_window_bytes() const noexcept { return static_cast<std::size_t>(peer_.window.length); }
  [[nodiscard]] std::uint64_t discarded() const noexcept { return discarded_.load(std::memory_order_relaxed); }

  std::atomic<int> last_code{0};           ///< \thread any
  std::atomic<unsigned> timeout_ms{5000};  ///< \thread any

  /// Carries out a call. \thread any
  [[nodiscard]] Status carry_out(Operation& operation, Deadline deadline) noexcept;
  /// A transfer between registered memory and a window of the peer, by the thread that drives the connection and has
  /// nothing else to wait for. kAgain: that is not so, and `carry_out` is the way. \thread any
  [[nodiscard]] Status transfer_now(Request::Kind kind, const message::LocalSpan& local,
                                    const message::RemoteSpan& remote) noexcept {
    return now([&] {
      if (!knows_local(local)) [[unlikely]]
        return Status::kLocalAccess;
      const std::chrono::milliseconds timeout{timeout_ms.load(std::memory_order_relaxed)};
      return kind == Request::Kind::kRead ? channel_->read(local, remote, timeout)
                                          : channel_->write(local, remote, timeout);
    });
  }
  /// Whether the next two are worth an attempt: of short transfers the rest of a call is a large part.
  [[nodiscard]] bool may_go_now(std::size_t offset, std::size_t length) const noexcept {
    constexpr std::size_t kMost = 1u << 20;
    const std::size_t window = peer_window_bytes();
    return length - 1 < kMost && offset <= window && length <= window - offset;
  }
  /// The same between any memory and the peer's default window, and an atomic. kAgain, too: on a device.
  [[nodiscard]] Status read_now(std::span<std::byte> to, std::uint64_t offset) noexcept {
    return now([&] { return channel_->read_now(to, {peer_.window.address + offset, to.size(), peer_.window.rkey}); });
  }
  [[nodiscard]] Status write_now(std::span<const std::byte> from, std::uint64_t offset) noexcept {
    return now(
        [&] { return channel_->write_now(from, {peer_.window.address + offset, from.size(), peer_.window.rkey}); });
  }
  [[nodiscard]] Status change_now(const message::Change& change, const message::RemoteSpan& word,
                                  std::uint64_t& old) noexcept {
    return now([&] { return channel_->change_now(change, word, old); });
  }
  /// Starts a transfer between registered memory. kAgain: as many as Completions::kMost are under way or not taken.
  /// \thread any
  [[nodiscard]] Status start_transfer(const Request& request, std::uint64_t cookie, Deadline deadline) noexcept;
  /// Whether `bytes` at `address` are registered here as `lkey`. \thread any
  [[nodiscard]] bool is_registered(std::uint64_t address, std::uint64_t bytes, std::uint32_t lkey) noexcept;
  /// Asks the peer for a window, and imports it. kNotFound: it has none. \thread any
  [[nodiscard]] Result<RdmaWindow> look_up(std::string_view name, Deadline deadline);
  [[nodiscard]] Result<RdmaWindow> look_up(std::uint32_t rkey, Deadline deadline);
  /// \thread any
  [[nodiscard]] Result<void> import_window(const RdmaWindow& window, Deadline deadline);
  [[nodiscard]] Result<void> release_window(const RdmaWindow& window, Deadline deadline);
  /// Memory for this connection's peer. \thread any
  [[nodiscard]] Result<const RdmaMemory*> allocate(std::size_t size);
  /// Exports memory by physical address, and tells the peer: that of its first byte. \thread any
  [[nodiscard]] Result<std::uint64_t> export_physical(const RdmaMemory* memory, Deadline deadline);
  /// Whether messages are kept for rdmaConnRecv. \thread any
  [[nodiscard]] bool receives() const noexcept {
    return !callbacks.message && !discards_.load(std::memory_order_relaxed);
  }

  // The end. Of a client or a kept connection: `close`, then its destruction; of others `end_in_callback`.
  void keep() noexcept { is_kept_ = true; }
  [[nodiscard]] bool is_kept() const noexcept { return is_kept_; }
  /// The runtime frees it, where `end_in_callback` follows.
  void give_back() noexcept { is_kept_ = false; }
  /// Nothing of it is the runtime's any more. In a callback.
  [[nodiscard]] bool is_detached() const noexcept { return is_detached_; }
  /// Something has arrived that nobody has taken. In a callback.
  [[nodiscard]] bool has_messages() const noexcept { return !inbox_->empty(); }
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
  /// And no memory of the user's is with the NIC.
  [[nodiscard]] bool is_quiet() const noexcept;
  /// Nothing is left to do: it can be detached.
  [[nodiscard]] bool is_over() const noexcept;
  /// When `is_over` is to be asked again.
  [[nodiscard]] Deadline look_again() const noexcept { return linger_; }
  /// Frees the channel; the rest goes with the connection.
  void detach() noexcept;

 protected:
  ~Conn() { forget_memory(); }

 private:
  /// A call of another thread is handed over within some time, also when its own deadline is nearer.
  [[nodiscard]] static Deadline hand_over_by(Deadline deadline) noexcept {
    constexpr std::chrono::milliseconds kHandOver{100};
    const Deadline least = Deadline::after(kHandOver);
    return deadline.ticks() > least.ticks() ? deadline : least;
  }
  static constexpr std::size_t kChunks = 8;
  /// Pieces of transfers in the user's memory that are with the NIC at a time.
  static constexpr std::size_t kPieces = 32;
  /// Names that the peer asked for and that are not there.
  static constexpr std::size_t kQuestions = 16;
  static constexpr std::size_t kChunkBytes = 64 * 1024;
  struct Chunk {
    Operation* operation = nullptr;  ///< Null when nobody waits any more.
    std::size_t at = 0;              ///< In the operation's memory.
    std::size_t length = 0;
    bool is_busy = false;  ///< The NIC may use it.
  };
  /// A window that the peer asked for.
  struct Question {
    std::uint64_t number = 0;
    std::uint32_t rkey = 0;
    std::string name;  ///< Empty: by its key.
    bool is_told_absent = false;
  };
  /// What the peer exported by physical address.
  struct PeerTable {
    remote::PhysicalTable table;
    std::vector<bool> is_imported;  ///< Of each run.
    std::size_t last = 0;
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
  [[nodiscard]] Result<void> open_memory();
  void forget_memory() noexcept;
  void undo() noexcept;

  [[nodiscard]] Status carry_out_here(Operation& operation, Deadline deadline) noexcept;
  /// Calls `task`, which returns a Status, if nobody else drives the connection and nothing waits.
  template <class Task>
  [[nodiscard]] Status now(Task&& task) noexcept;
  /// Carries out a transfer that no other is ahead of, where the NIC can do so at once. False: start it.
  [[nodiscard]] bool is_done_directly(const Operation& operation) noexcept;
  /// Calls `task` where nothing else of the connection runs. kBusy, or as Poller::run.
  template <class Task>
  [[nodiscard]] Status run(Task&& task, Deadline deadline) noexcept;
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
  /// The next part of an operation. kAgain: no chunk is free, or the channel is full.
  [[nodiscard]] Status start_piece(Operation& operation) noexcept;
  [[nodiscard]] Status start_chunk(Operation& operation, message::RemoteSpan remote) noexcept;
  [[nodiscard]] Status start_registered(Operation& operation, message::RemoteSpan remote) noexcept;
  /// What is left of an operation, or as much of it as lies in one run.
  [[nodiscard]] Status remote_of(const Operation& operation, message::RemoteSpan& remote) noexcept;
  [[nodiscard]] Status find_physical(std::uint64_t address, std::uint64_t length, message::RemoteSpan& remote) noexcept;
  /// Nothing more of it is started.
  void cut(Operation& operation, Status status) noexcept;
  void on_piece(Operation& operation, Status status) noexcept;
  /// The local key's cache, of who drives the connection.
  [[nodiscard]] bool knows_local(const message::LocalSpan& local) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(local.data);
    if (local_generation_ == runtime_->registry().generation() && local_key_.covers(address, local.length, local.lkey))
        [[likely]]
      return true;
    return find_local(local);
  }
  [[nodiscard]] bool find_local(const message::LocalSpan& local) noexcept;
  [[nodiscard]] Status start_here(const Request& request, std::uint64_t cookie) noexcept;
  void keep_completion(Operation& operation) noexcept;
  void feed_takers() noexcept;
  void kill(Status reason) noexcept;
  [[nodiscard]] bool tell_of_write(Operation& operation) noexcept;
  [[nodiscard]] std::byte* memory_of(std::size_t chunk) const noexcept { return bounce_->data() + chunk * kChunkBytes; }

  // Windows and tables.
  [[nodiscard]] Result<RdmaWindow> ask(Operation& operation, Deadline deadline);
  void send_asks() noexcept;
  void answer_questions() noexcept;
  [[nodiscard]] bool on_question(const wire::Head& head, std::span<const std::byte> name) noexcept;
  [[nodiscard]] bool on_answer(const wire::Head& head, std::span<const std::byte> data) noexcept;
  [[nodiscard]] bool on_table(const wire::Head& head, std::span<const std::byte> piece) noexcept;

  // Receiving.
  [[nodiscard]] bool accept_piece(const wire::Head& head, std::span<const std::byte> piece) noexcept;
  void count_discarded(const wire::Head& head, std::size_t piece) noexcept;
  void feed_receives() noexcept;
  void feed(Operation& operation) noexcept;
  [[nodiscard]] RdmaMessage written(const wire::Head& head) const noexcept;
  /// The next message for the callback, in `partial_`; false when none is whole.
  [[nodiscard]] bool assemble(RdmaMessage& message) noexcept;

  std::shared_ptr<Runtime> runtime_;
  std::unique_ptr<nic::RegisteredArena> bounce_;
  const RdmaMemory* window_ = nullptr;  ///< The registry's.
  ibv_gid peer_gid_{};
  std::unique_ptr<message::Channel> channel_;
  std::unique_ptr<Inbox> inbox_;
  wire::Hello peer_;
  std::size_t longest_piece_ = 0;

  OperationQueue sends_;
  OperationQueue transfers_;
  OperationQueue receives_;
  OperationQueue asks_;
  OperationQueue takers_;
  std::array<Chunk, kChunks> chunks_{};
  std::uint32_t pieces_ = 0;  ///< Of all operations.
  std::unique_ptr<Operation[]> started_;
  std::size_t untaken_ = 0;  ///< Of started_: under way, or complete and not taken.
  std::size_t under_way_ = 0;
  Completions to_take_;
  Completions to_call_;
  LocalKey local_key_;  ///< That was used last.
  std::uint64_t local_generation_ = 0;
  std::vector<Question> questions_;
  std::uint64_t questions_generation_ = 0;
  std::uint64_t last_ask_ = 0;
  std::vector<PeerTable> tables_;
  std::vector<std::byte> table_bytes_;  ///< Of a table that is arriving.

  /// Nobody polls between calls, and the NIC hands on only while somebody does.
  bool wants_receipts_ = false;
  bool is_callers_ = false;  ///< Driver::kCaller, and connected.
  std::uint64_t last_receipt_ = 0;
  std::uint64_t sent_ = 0;           ///< Bytes of records, in all.
  std::uint64_t peer_consumed_ = 0;  ///< Of these, as the peer claims.
  std::uint64_t told_ = 0;           ///< Of inbox_->consumed().
  std::uint64_t in_total_ = 0;       ///< Of the message that is arriving; 0: none.
  std::uint64_t in_next_ = 0;        ///< Offset of its next piece.
  std::vector<std::byte> partial_;   ///< Of a message that was not taken whole.

  Status reason_ = Status::kOk;  ///< Why it is dead.
  std::atomic<bool> discards_{false};
  bool is_kept_ = false;
  bool has_announced_ = false;
  bool has_told_end_ = false;
  bool is_leaving_ = false;
  bool is_goodbye_due_ = false;
  bool is_answer_awaited_ = false;
  bool is_goodbye_seen_ = false;
  Deadline linger_ = Deadline::never();
  std::atomic<bool> is_detached_{false};  ///< Set by Runtime::tell, where there is a thread.
  std::atomic<bool> is_set_up_{false};
  std::atomic<bool> is_live_{false};
  Exclusive used_;  ///< With Driver::kCaller: by the call that is under way.
  std::atomic<std::uint64_t> discarded_{0};
  std::atomic<std::size_t> exports_{0};  ///< By physical address, in its life.
};

/// The physical address of a byte of this process: that under which `conn`, unless null, exported it, or else what the
/// kernel says. \thread any
[[nodiscard]] Result<std::uint64_t> physical_address_of(Conn* conn, const void* local);

// In the header, with what it calls: each call of a function between a user's call and the NIC would be ten
// instructions of a few hundred.
template <class Task>
inline Status Conn::now(Task&& task) noexcept {
  if (!is_callers_) return Status::kAgain;
  Exclusive::Mark* const mark = used_.enter();
  if (mark == nullptr) [[unlikely]]
    return Status::kBusy;
  Status status = reason_;
  if (status == Status::kOk) [[likely]]
    status = transfers_.first() == nullptr ? task() : Status::kAgain;
  // Without a channel it has ended, and its handle is still to be closed.
  if (status != Status::kOk && channel_ != nullptr && !channel_->alive()) [[unlikely]]
    end(status);
  Exclusive::leave(mark);
  return status;
}

template <class Task>
Status Conn::run(Task&& task, Deadline deadline) noexcept {
  if (is_detached_.load(std::memory_order_acquire)) return reason_;
  if (!runtime_->is_driven_here()) return runtime_->poller().run(task, hand_over_by(deadline));
  const bool is_shared = runtime_->driver() == Driver::kCaller;
  Exclusive::Mark* const mark = is_shared ? used_.enter() : nullptr;
  if (is_shared && mark == nullptr) return Status::kBusy;
  task();
  if (mark != nullptr) Exclusive::leave(mark);
  return Status::kOk;
}

}  // namespace verbena::c

/// What users hold.
struct verbena_RdmaConn final : verbena::c::Conn {
  using Conn::Conn;
  // While the connection is whole: with its companion ends what others hold of it.
  ~verbena_RdmaConn() { companion.reset(); }
  bool is_client = false;
};
