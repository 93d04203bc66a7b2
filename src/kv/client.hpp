// The client: channels to all workers of one server, and a fixed table of operations.
#pragma once

#include "base/fork.hpp"
#include "channel/connection.hpp"
#include "engine/loop.hpp"
#include "kv/awaited.hpp"
#include "kv/reader.hpp"
#include "kv/statistics.hpp"
#include "kv/wire.hpp"
#include "link/fabric.hpp"
#include "nic/registered_arena.hpp"
#include "node/device.hpp"
#include "node/shard.hpp"

#include <verbena/kv.hpp>

#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

namespace verbena::kv {

/// The call's name as users write it.
[[nodiscard]] constexpr const char* call_of(wire::Op op) noexcept {
  switch (op) {
    case wire::Op::kPut: return "kv::Client::put";
    case wire::Op::kGet: return "kv::Client::get";
    case wire::Op::kCas: return "kv::Client::cas";
    case wire::Op::kErase: return "kv::Client::erase";
    case wire::Op::kStatistics: return "kv::Client::server_statistics";
    case wire::Op::kKeys: return "kv::Client::keys";
    case wire::Op::kFlush: return "kv::Client::flush";
    default: return "kv::Client::open_cell";
  }
}

/// Values that the connection copies are READ in pieces of this size.
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

/// One operation from start to completion. Its slot is reused only when nothing more of it can arrive: after a time-out
/// it stays taken until the reply is here.
struct Operation {
  enum class Stage : std::uint8_t {
    kFree,
    kSending,   ///< Large value: the channel still reads it; the reply may already arrive.
    kAwaiting,  ///< The request is out.
    kLent,      ///< Large value: the request is out, and the server READs the value until it has replied.
    kLooking,   ///< Get: READs of the two buckets of the index are in flight.
    kFetching,  ///< Get: the READ of an item is in flight.
    kChecking,  ///< Get: the value is in place; the READ that tells whether its item is still live is in flight.
    kReading,   ///< Get: READs are in flight.
    kOnWord,    ///< An atomic on a cell, or a READ of it, is in flight.
    kDone,      ///< The outcome is set and not yet taken.
  };
  /// How a get finds its item.
  enum class Way : std::uint8_t { kMessage, kLocation, kIndex };
  Stage stage = Stage::kFree;
  wire::Op op = wire::Op::kGet;
  bool is_pipelined = false;
  bool is_abandoned = false;  ///< Timed out: the caller is gone.
  bool is_bounced = false;    ///< Get: `out` is not registered, so the connection copies.
  bool has_reply = false;
  bool is_late = false;         ///< Get: a piece came too late to be trusted.
  std::uint8_t mismatches = 0;  ///< Get: whole values that did not match their checksum.
  std::uint16_t key_length = 0;
  std::uint16_t worker = 0;
  std::uint32_t id = 0;            ///< Its name in replies: the slot, above that a generation.
  std::uint64_t hash = 0;          ///< The key's.
  std::uint64_t entry = 0;         ///< Get: the entry of the item that is READ.
  Outcome* result = nullptr;       ///< For a batch, which waits for it.
  AwaitedCall* awaited = nullptr;  ///< Whom to tell.
  std::uint64_t cookie = 0;
  std::uint64_t sent_ticks = 0;  ///< Taken before the request went out.
  std::uint64_t started_ticks = 0;
  std::span<std::byte> out;
  /// Get: where the value is, and how it was found; outcome.length is its length.
  struct Source {
    std::uint64_t address = 0;
    std::uint64_t checksum = 0;  ///< 0 if the server keeps none.
    std::uint32_t rkey = 0;
    Way way = Way::kMessage;
    std::uint8_t lookups = 0;    ///< Lookups through the index so far.
    std::uint8_t candidate = 0;  ///< The next entry to look at, in the order of both buckets.
  } source;
  /// Progress of the value.
  struct Transfer {
    std::uint64_t posted = 0;  ///< Bytes. Get: READs for them are posted. Put of a staged value: all of it.
    std::uint64_t copied = 0;  ///< How many of them. Get: in place. Put: on their way.
    std::uint32_t pieces = 0;  ///< READs or large messages in flight.
    std::uint32_t burst = 0;   ///< Get: READs in flight, at most.
    [[nodiscard]] bool is_idle() const noexcept { return pieces == 0 && posted == copied; }
  } transfer;
  Outcome outcome;
  std::array<std::byte, kMaxKeyBytes> key;  ///< For asking again, when a READ came too late.

  [[nodiscard]] bool is_running() const noexcept { return stage != Stage::kFree && stage != Stage::kDone; }
  [[nodiscard]] std::uint32_t slot() const noexcept { return id & 0xffff; }
  [[nodiscard]] std::span<const std::byte> key_bytes() const noexcept { return std::span(key).first(key_length); }
  [[nodiscard]] std::size_t piece_bytes() const noexcept { return is_bounced ? kChunkBytes : kPieceBytes; }
};
static_assert(sizeof(Operation) == 168 + kMaxKeyBytes, "every operation touches three cache lines before its key");

/// Purpose of a channel's completion. A token holds this kind, a staging chunk and the operation.
enum class Piece : std::uint8_t { kBodyChunk = 1, kRead = 2, kLookup = 3, kWord = 4, kMark = 5 };

[[nodiscard]] constexpr std::uint64_t token_of(Piece piece, const Operation& operation, unsigned chunk = 0) noexcept {
  return static_cast<std::uint64_t>(piece) << 56 | std::uint64_t{chunk} << 48 | operation.id;
}

/// Marks in flight on all channels.
inline constexpr std::uint32_t kMostMarks = 4;

class PollingClient final : public Client, private channel::Handler {
 public:
  explicit PollingClient(const ClientOptions& options);
  ~PollingClient() override;
  static void operator delete(PollingClient* client, std::destroying_delete_t) noexcept {
    delete_unless_forked(client);
  }
  [[nodiscard]] Result<void> connect();
  /// The memory that a client of a server with `workers` workers allocates. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits,
                                                 const ClientOptions& options, unsigned workers);

  Outcome put(Key key, std::span<const std::byte> value, Deadline deadline) noexcept override;
  Outcome put(Key key, std::span<const std::byte> value, const PutOptions& options,
              Deadline deadline) noexcept override;
  Outcome get(Key key, std::span<std::byte> out, Deadline deadline) noexcept override;
  Outcome cas(Key key, std::uint64_t expected, std::span<const std::byte> value, Deadline deadline) noexcept override {
    return run({.op = wire::Op::kCas, .expected = expected, .key = key, .value = value}, deadline);
  }
  Outcome erase(Key key, Deadline deadline) noexcept override {
    return run({.op = wire::Op::kErase, .key = key}, deadline);
  }
  void get(std::span<GetRequest> requests, Deadline deadline) noexcept override;
  void put(std::span<PutRequest> requests, Deadline deadline) noexcept override;
  Result<Cell> open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept override;
  Status fetch_add(const Cell& cell, std::uint64_t delta, std::uint64_t& old, Deadline deadline) noexcept override {
    return change(cell, {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = delta}, old, deadline);
  }
  Status compare_swap(const Cell& cell, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                      Deadline deadline) noexcept override {
    return change(cell, {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, old, deadline);
  }
  Status read(const Cell& cell, std::uint64_t& value, Deadline deadline) noexcept override;
  Status keys(Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept override;
  Status flush(Key prefix, std::uint64_t& erased, Deadline deadline) noexcept override;
  Status start_put(Key key, std::span<const std::byte> value, std::uint64_t cookie) noexcept override {
    return start_pipelined({.op = wire::Op::kPut, .key = key, .value = value}, cookie);
  }
  Status start_put(Key key, std::span<const std::byte> value, const PutOptions& options,
                   std::uint64_t cookie) noexcept override;
  Status start_get(Key key, std::span<std::byte> out, std::uint64_t cookie) noexcept override {
    return start_pipelined({.op = wire::Op::kGet, .key = key, .out = out}, cookie);
  }
  std::size_t poll(std::span<Completion> completions) noexcept override;
  std::size_t wait(std::span<Completion> completions, Deadline deadline) noexcept override;
  std::size_t in_flight() const noexcept override { return in_flight_.pipelined; }
  std::span<std::byte> allocate(std::size_t bytes) noexcept override;
  Result<ServerStatistics> server_statistics(Deadline deadline) noexcept override;
  std::size_t max_value_bytes() const noexcept override { return server_.max_value_bytes; }
  verbena::Counters counters() const noexcept override { return loop_->counters(); }
  LookupCounters lookups() const noexcept override;
  Error connection_error() const noexcept override;
  const char* description() const noexcept override { return description_.data(); }
  Status settle(Deadline deadline) noexcept override;

  // --- awaited: client_awaited.cpp. \thread owner
  /// Whether others than `who` await something of it. \thread any
  [[nodiscard]] bool is_awaited_by_another(const void* who) const noexcept {
    const void* const now = awaited_.who.load(std::memory_order_relaxed);
    return now != nullptr && now != who;
  }
  /// True: it is over, and its outcome is set. False: begin it.
  [[nodiscard]] bool carry_out_now(AwaitedCall& call) noexcept;
  /// False: it is over, and nobody is told. Else `tell` is called once, unless `withdraw` returns true.
  [[nodiscard]] bool begin(AwaitedCall& call, const void* who) noexcept;
  /// Takes it back: nobody is told, and its memory is the caller's. False: it was told before.
  [[nodiscard]] bool withdraw(AwaitedCall& call) noexcept;
  void look() noexcept;
  /// Looks, and sleeps until something has come, the deadline, or `wake`.
  void sleep(Deadline deadline) noexcept;
  /// \thread any
  void wake() noexcept { loop_->wake(); }
  [[nodiscard]] Deadline default_deadline() const noexcept { return deadline(); }
  template <std::derived_from<Poller> Kind>
  [[nodiscard]] Kind& poller() noexcept {
    static_assert(sizeof(Kind) <= kPollerBytes);
    if (awaited_.poller == nullptr) awaited_.poller = new (awaited_.poller_memory.data()) Kind(*this);
    return static_cast<Kind&>(*awaited_.poller);
  }

 private:
  using Stage = Operation::Stage;

  Deadline deadline() const noexcept override { return Deadline::after(options_.timeout); }
  Outcome get_in_default_time(Key key, std::span<std::byte> out) noexcept override;

  // channel::Handler
  void on_message(channel::Connection& channel, std::span<const std::byte> body) noexcept override;
  void on_complete(channel::Connection& channel, const channel::Completion& completion) noexcept override;
  void on_end(channel::Connection& channel, Status reason) noexcept override;

  // Setup.
  [[nodiscard]] Result<void> connect_to(unsigned worker, Deadline deadline);
  void take_limits(const wire::ServerHello& hello);
  void say_goodbye() noexcept;

  // Slots.
  [[nodiscard]] Operation& take_slot() noexcept;
  void free_slot(Operation& operation) noexcept;
  /// Null: no operation has this id any more.
  [[nodiscard]] Operation* find(std::uint32_t id) noexcept;
  [[nodiscard]] channel::Connection& channel_of(const Operation& operation) const noexcept {
    return *channels_[operation.worker];
  }

  // Operations.
  [[nodiscard]] Status check(const Ask& ask) const noexcept;
  /// The same for one that this thread does not wait for.
  [[nodiscard]] Status check_unblocked(const Ask& ask, const char* call) const noexcept;
  [[nodiscard]] Status check_whole(const Ask& ask) const noexcept;
  /// Says in words what is wrong with the request.
  [[nodiscard]] Status refuse(const Ask& ask) const noexcept;
  [[nodiscard]] Status start(const Ask& ask, Operation*& started) noexcept;
  [[nodiscard]] Status start_pipelined(Ask ask, std::uint64_t cookie) noexcept;
  /// `limit()` is the deadline, and is asked for at most once, before the first wait.
  template <class Limit>
  [[nodiscard]] Outcome get_until(Key key, std::span<std::byte> out, Deadline of_reads, Limit&& limit) noexcept;
  [[nodiscard]] Outcome run(const Ask& ask, Deadline deadline) noexcept;
  [[nodiscard]] Outcome attempt(const Ask& ask, Deadline deadline, bool& is_resting) noexcept;
  [[nodiscard]] Outcome give_up(Operation& operation) noexcept;
  [[nodiscard]] static bool uses_memory(const Operation& operation) noexcept;
  void abandon(Operation& operation) noexcept;
  void die_late() noexcept;
  void finish(Operation& operation, const Outcome& outcome) noexcept;
  void settle(Operation& operation) noexcept;
  void on_reply(Operation& operation, const wire::Reply& reply) noexcept;
  void take_location(Operation& operation, const wire::Reply& reply) noexcept;
  void ask_again(Operation& operation) noexcept;
  [[nodiscard]] static std::chrono::nanoseconds time_left(const wire::Reply& reply) noexcept;
  void note_location(const Operation& operation, const wire::ReplyHead& head) noexcept;

  // Batches: client_batch.cpp.
  template <class Request>
  void run_batch(std::span<Request> requests, Deadline deadline) noexcept;
  [[nodiscard]] bool start_one(GetRequest& request, Deadline deadline) noexcept;
  [[nodiscard]] bool start_one(PutRequest& request, Deadline deadline) noexcept;
  [[nodiscard]] bool start_in_batch(const Ask& ask) noexcept;
  void give_up_batch() noexcept;

  // Gets by READs: client_reads.cpp.
  [[nodiscard]] bool may_read() const noexcept { return options_.lookup != Lookup::kMessage && !way_.by_message; }
  [[nodiscard]] bool start_lookup(Operation& operation) noexcept;
  [[nodiscard]] bool start_buckets(Operation& operation) noexcept;
  [[nodiscard]] bool start_item(Operation& operation, std::uint64_t entry, Operation::Way way) noexcept;
  void start_check(Operation& operation) noexcept;
  [[nodiscard]] bool start_fetch(Operation& operation, const channel::RemoteSpan& from, Stage stage) noexcept;
  void on_lookup_read(Operation& operation) noexcept;
  void try_candidates(Operation& operation) noexcept;
  void take_item(Operation& operation) noexcept;
  void take_check(Operation& operation) noexcept;
  void end_lookup(Operation& operation) noexcept;
  void start_mark(const Operation& operation) noexcept;
  void on_overtaken(Operation& operation) noexcept;
  void ask_by_message(Operation& operation) noexcept;

  // Servers that grant no memory, and refusals: client_messages.cpp.
  void take_part(Operation& operation, const wire::Reply& reply) noexcept;
  void ask_for_part(Operation& operation) noexcept;
  void take_refusal(const Operation& operation, wire::Reply& reply) noexcept;
  void take_full(const Operation& operation, wire::Reply& reply) noexcept;

  // Large values.
  [[nodiscard]] bool is_registered(std::span<const std::byte> bytes) const noexcept;
  [[nodiscard]] channel::LocalSpan local(std::span<const std::byte> bytes) const noexcept;
  [[nodiscard]] bool lends() const noexcept { return !options_.read_only && options_.buffer_bytes != 0; }
  [[nodiscard]] Status send_lent(Operation& operation, const Ask& ask) noexcept;
  [[nodiscard]] Status send_chunks(Operation& operation, const Ask& ask, Deadline deadline) noexcept;
  [[nodiscard]] Status send_head(Operation& operation, const Ask& ask, channel::LocalSpan body,
                                 std::uint64_t token) noexcept;
  void start_reading(Operation& operation, std::uint64_t address, std::uint32_t rkey, std::uint64_t checksum) noexcept;
  void read_pieces(Operation& operation) noexcept;
  void on_piece_read(Operation& operation) noexcept;
  void end_read(Operation& operation) noexcept;

  // Cells: client_cells.cpp.
  [[nodiscard]] Result<void> use_cells(Deadline deadline) noexcept;
  [[nodiscard]] Status change(const Cell& cell, const channel::Change& change, std::uint64_t& old,
                              Deadline deadline) noexcept;
  [[nodiscard]] Status check_cell(const Cell& cell, const char* call) const noexcept;
  [[nodiscard]] Status end_on_word(const Cell& cell, Status status) noexcept;
  [[nodiscard]] channel::RemoteSpan span_of(const Cell& cell) const noexcept;

  // Awaited operations: client_awaited.cpp.
  PollingClient* polled() noexcept override { return this; }
  [[nodiscard]] bool carry_out_on_word_now(AwaitedCall& call) noexcept;
  [[nodiscard]] Status start_awaited(AwaitedCall& call) noexcept;
  [[nodiscard]] Status start_on_word(AwaitedCall& call, Operation*& started) noexcept;
  void on_word(Operation& operation, std::uint64_t old) noexcept;
  void end_awaited(Operation& operation, const Outcome& outcome) noexcept;
  void tell(AwaitedCall& call, const Outcome& outcome) noexcept;
  void forget(AwaitedCall& call) noexcept;
  void go_on_awaited() noexcept;
  void end_waiting(Status reason) noexcept;
  // Scans: client_scan.cpp.
  [[nodiscard]] Status scan(wire::Op op, Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept;
  void take_scanned(Operation& operation, const wire::Reply& reply) noexcept;
  /// Tells the server of gets by READs, if there are `least` that it has not been told of.
  void report_reads(std::uint64_t least) noexcept;

  // The connection.
  [[nodiscard]] Status notice(unsigned worker, Status status) noexcept;
  void die(Status reason, const char* what) noexcept;
  [[nodiscard]] bool has_failed() const noexcept { return error_.status() != Status::kOk || is_forked(); }
  /// Call for a connection that has failed; acts once.
  void drain() noexcept {
    if (has_failed() && !channels_.empty()) [[unlikely]]
      end_operations();
  }
  void end_operations() noexcept;
  void work() noexcept;
  [[nodiscard]] Deadline pipeline_deadline() const noexcept;
  void expire() noexcept;

  ClientOptions options_;
  std::unique_ptr<link::Fabric> fabric_;
  std::shared_ptr<node::Device> device_;
  nic::RegisteredArena region_;  ///< The operations' places, then the memory that `allocate` hands out. The server may
                                 ///< READ it.
  std::unique_ptr<node::Shard> shard_;                          ///< Polled by the calling thread.
  engine::CompletionLoop* loop_ = nullptr;                      ///< The shard's.
  std::vector<std::unique_ptr<channel::Connection>> channels_;  ///< One per worker.
  std::uint64_t id_ = 0;
  wire::ServerHello server_;      ///< From the first worker.
  std::uint64_t read_ticks_ = 0;  ///< A READ that completes later than this after the request is not trusted.

  std::vector<Operation> operations_;
  std::vector<std::uint32_t> free_;  ///< A stack of slots.
  std::vector<std::uint32_t> done_;  ///< Slots of completed pipelined operations, in order.
  struct {
    std::size_t pipelined = 0;  ///< Operations started and not yet polled.
    std::size_t batched = 0;    ///< Operations of the current batch.
    std::uint32_t ahead = 0;    ///< READs beyond the first of each get into registered memory.
    unsigned empty_polls = 0;   ///< Since a poll that found something, or since the last look at their age.
    std::uint32_t marks = 0;    ///< WRITEs of marks, kMostMarks at most.
  } in_flight_;

  static constexpr std::uint64_t kReadsPerReport = 4096;
  static constexpr unsigned kMostPieces = 4;  ///< READs of one value at a time.
  // Each operation that may READ has a place in our own memory: for buckets, then for an item. A late READ still lands
  // there; its slot stays taken until then.
  static constexpr std::size_t kPlaceBytes = 2 * sizeof(Bucket) + Part::kMostItemBytes;
  // A line more has the byte that marks are written from.
  [[nodiscard]] static constexpr std::size_t own_bytes(const ClientOptions& options) noexcept {
    return (options.lookup != Lookup::kMessage ? options.depth * kPlaceBytes : 0) + kLineBytes;
  }
  [[nodiscard]] std::byte* buckets_at(const Operation& operation) const noexcept {
    return region_.data() + operation.slot() * kPlaceBytes;
  }
  [[nodiscard]] std::byte* item_at(const Operation& operation) const noexcept {
    return buckets_at(operation) + 2 * sizeof(Bucket);
  }

  struct : Lookups {
    std::uint64_t reported = 0;  ///< Gets by READs that the server was told of.
  } lookups_;
  Reader reader_{lookups_};
  struct {
    bool reads_now = false;   ///< The NIC may carry out READs in this thread.
    bool by_message = false;  ///< The server grants this user no memory to READ.
    bool is_guarded = false;  ///< READ bytes count only if the index still names the item.
  } way_;

  std::size_t allocated_ = 0;
  struct {
    StatisticsPart part{};
    ServerStatistics* out = nullptr;
    KeyPage* page = nullptr;
    wire::ScanPlace next;
  } wanted_;  ///< What the blocked call asks for besides values: a part of the statistics and where it goes, or where
              ///< keys go and the scan goes on.
  struct {
    std::vector<nic::Window> windows;  ///< One per worker; length 0 until a cell of that worker is opened.
    wire::CellPlace place;             ///< Place of the cell opened last,
    std::uint32_t worker = 0;          ///< and its worker.
  } cells_;
  struct {
    AwaitedCalls queued;                    ///< For room, first come first served.
    AwaitedCalls resting;                   ///< Puts that are sent again, the next one first.
    std::size_t count = 0;                  ///< Those that were begun and not told.
    std::atomic<const void*> who{nullptr};  ///< Who has begun them.
    Poller* poller = nullptr;
    alignas(kPollerAlignment) std::array<std::byte, kPollerBytes> poller_memory{};
  } awaited_;
  bool is_leaving_ = false;  ///< This side said goodbye first.
  Error error_;
  std::array<char, 768> description_{};
};

}  // namespace verbena::kv
