/// \file
/// The key-value store: a server whose pinned workers poll, and a client whose calls block or are pipelined.
#pragma once

#include <verbena/counters.hpp>
#include <verbena/deadline.hpp>
#include <verbena/error.hpp>
#include <verbena/kv_statistics.hpp>
#include <verbena/transport.hpp>
#include <verbena/wait_policy.hpp>

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

// The library's own; opaque here.
namespace verbena::coroutine::detail {
class KvWait;
}

namespace verbena::kv {

class PollingClient;

/// Longest key in bytes; the shortest has 1.
inline constexpr std::size_t kMaxKeyBytes = 1024;
/// Values below this travel inside a message in either direction.
inline constexpr std::size_t kEagerBytes = 4096;

/// The longest time to live of a value: a hundred years.
inline constexpr std::chrono::milliseconds kMaxTimeToLive = std::chrono::hours{24 * 36'500};

/// Any bytes, null included. The call that takes it copies it.
using Key = std::span<const std::byte>;

/// How values of 64 KiB and more get into the item memory.
enum class LargePut : std::uint8_t {
  /// The server copies them into memory that no client can write: it READs them if they are in memory from
  /// `Client::allocate`, and other values pass through memory that the client has to itself.
  kCopy = 0,
  kAdopt = 1,  ///< Removed in 0.1: `Server::start` refuses it with kUnsupported.
};

/// The policy of a server that has no memory, or no place for a key.
enum class Evict : std::uint8_t {
  kNone = 0,  ///< Nothing is removed: puts fail with kStoreFull or kIndexFull.
  /// Removes keys that nobody has got or replaced lately, until the new value fits: second chance, by marks. Clients
  /// leave them by WRITEs of a byte, for one get in 8 of those without the server, in memory that the server exports
  /// to those who may read all keys: a client may only mark. Never removed: cells, and large values whose
  /// location was told within the grace period. kStoreFull is left for values for which nothing can be removed.
  kLru = 1,
};
/// "none", "lru". \thread any  \alloc none
[[nodiscard]] const char* to_string(Evict evict) noexcept;

/// The subject of a grant: a user. Other kinds may come.
struct Subject {
  /// How a subject is identified.
  enum class Kind : std::uint8_t {
    kUser,  ///< By the user of the client's process, which the kernel tells.
  };
  Kind kind = Kind::kUser;  ///< Selects the member that counts.
  uid_t uid = 0;            ///< With kUser: the user.
  /// The same subject.
  friend bool operator==(const Subject&, const Subject&) = default;
};

/// Rights of a grant: flags.
enum class Rights : std::uint8_t {
  kNone = 0,        ///< For a grant that has only a quota.
  kRead = 1,        ///< get.
  kWrite = 2,       ///< put, cas, erase. An answer to them tells whether the key is there, and its version.
  kAdminister = 4,  ///< Read the server's statistics, which reveal everybody's use.
};
/// The union of two sets of rights. \thread any  \alloc none
[[nodiscard]] constexpr Rights operator|(Rights a, Rights b) noexcept {
  return static_cast<Rights>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
/// Whether `rights` have one of `some`. \thread any  \alloc none
[[nodiscard]] constexpr bool has_right(Rights rights, Rights some) noexcept {
  return (static_cast<unsigned>(rights) & static_cast<unsigned>(some)) != 0;
}

/// Most grants of a server.
inline constexpr std::size_t kMaxGrants = 256;

/// Rights of one subject, and a quota. The rights of all grants of a subject add up.
struct Grant {
  Subject subject{};               ///< The subject.
  Rights rights = Rights::kNone;   ///< kNone needs a quota.
  std::string prefix{};            ///< Any bytes, 0 to 1024: `rights` to read and to write are for keys that begin with
                                   ///< them. Empty: all keys. Cells need both rights to all keys.
  std::size_t max_memory_bytes{};  ///< Quota: memory of the items that the subject wrote last. 0: none; else at most
                                   ///< ServerOptions::memory_bytes. Set it in one grant.
  std::size_t max_items{};         ///< Quota: keys that the subject wrote last. 0: none; else at most the server's.
};

/// Options of a server. `Server::start` refuses limits that do not fit together; its error tells their sum.
struct ServerOptions {
  Transport transport{};                            ///< NIC and bootstrap; clients need the same.
  std::string address{};                            ///< Address or name to listen on. Empty: this host, by the RDMA
                                                    ///< device's own address, else by loopback.
  std::uint16_t port = 7470;                        ///< 0 takes any free port; `Server::port` tells which.
  std::size_t memory_bytes = std::size_t{1} << 30;  ///< Item memory. 1 MiB to 1 TiB.
  bool require_hugepages = false;  ///< Fails with kNoMemory where there are none, instead of taking small pages.
  unsigned workers = 1;            ///< Pinned polling threads, each with its share of keys and memory. 1 to 64.
  unsigned max_clients = 64;       ///< 1 to 1024.
  /// The most clients of each of `allowed_uids`, so that no user can take all places; the server's own user may take
  /// all. 1 to max_clients; 0 derives it: half of max_clients, rounded up. Software NIC only: a device cannot tell
  /// users.
  unsigned max_clients_per_user = 0;
  unsigned depth = 32;  ///< Requests that one client may have in flight at one worker. 1 to 1024.
  /// 1 B (with cells 8) to what leaves room for two such values, and the items that name them, in a worker's share of
  /// memory_bytes: 64 KiB less than half of it, or a 64th less if that is less. 0 derives it: that much.
  std::size_t max_value_bytes = 0;
  std::size_t lease_bytes = std::size_t{2} << 20;  ///< Window a client writes large values into. 64 KiB to 1 GiB.
  LargePut large_put = LargePut::kCopy;            ///< Leave it: kCopy is the only way.
  Evict evict = Evict::kNone;                      ///< kLru makes the store a cache: 1 B for each entry of the index.
  unsigned client_leases = 4;                      ///< Removed in 0.1: `Server::start` refuses another value.
  std::chrono::milliseconds lease_term{2000};      ///< Removed in 0.1: `Server::start` refuses another value.
  std::size_t max_items = 0;                       ///< 0 derives it from memory_bytes: one for every 128 bytes.
  /// Values of 4096 B and up get a checksum over all their bytes, made by the server and checked by every reader. Costs
  /// as much as copying them once more. Without it, `grace` and the item that names a value protect readers.
  bool checksum_large_values = false;
  std::size_t max_cells = 0;  ///< Words for `Client::open_cell`, 64 bytes of registered memory each; 0: none. At most
                              ///< max_items, because each cell is an item too.
  std::chrono::milliseconds grace{500};  ///< The server reuses a freed block only this long afterwards. 1 ms to 1 min.
  /// How workers without work wait. A worker without a core of its own waits by events, and the description says why.
  /// With kEvent no worker takes a core.
  WaitPolicy wait = WaitPolicy::kAdaptive;
  std::chrono::microseconds spin{50};  ///< With kAdaptive a worker polls this long before it sleeps. 0 to 1 s.
  bool pin_workers = true;             ///< true: workers take cores of their own while some are free.
  std::vector<uid_t> allowed_uids{};   ///< Users besides the server's own whose processes may connect.
  /// Rights and quotas of users; kMaxGrants at most. Empty, or with quotas only: everybody who may connect may do
  /// everything. Else users have only their granted rights, and users without any cannot connect; the server's own user
  /// may do everything unless a grant names it. A user with a right need not be in `allowed_uids`. Software NIC only: a
  /// device cannot tell users.
  ///
  /// A user who may read all keys reads one-sided, as without grants. Clients of other users get no access to the
  /// store's memory, and do everything by message, without further settings.
  std::vector<Grant> grants{};
  /// File of keys, one a line (docs/connections.md): only clients that prove one of them may connect. Read once, by
  /// `Server::start`. Empty: no key is needed, and on a device anybody who reaches the port may connect.
  std::string key_file{};
};

/// A running server. \thread any, one at a time, except where said
class Server {
 public:
  /// Returns once it accepts clients. Errors: kBadArgument (the text names the limit, and the sum that does not fit),
  /// kNoMemory, kLimit, kSystem (address in use); for key_file kNotFound, kPermission, kTooLong, kUnsupported (built
  /// without keys).
  [[nodiscard]] static Result<std::unique_ptr<Server>> start(const ServerOptions& options);
  virtual ~Server() = default;  ///< Stops it.

  /// The port it listens on, also if the option was 0.
  [[nodiscard]] virtual std::uint16_t port() const noexcept = 0;
  /// The address it listens on. Valid as long as the server.
  [[nodiscard]] virtual const char* address() const noexcept = 0;
  /// One line: the NIC and why; who may connect; memory in bytes, page size found and why, NUMA node; cores of workers.
  /// Valid as long as the server.
  [[nodiscard]] virtual const char* description() const noexcept = 0;
  /// A snapshot; no worker waits for it. \thread any  \alloc none
  [[nodiscard]] virtual ServerStatistics statistics() const noexcept = 0;
  /// The same for one worker, 0 to ServerOptions::workers - 1 (zeros for others): shows how keys and clients spread.
  /// Counts of the whole server (clients, last_version) are 0. \thread any  \alloc none
  [[nodiscard]] virtual ServerStatistics worker_statistics(unsigned worker) const noexcept = 0;
  /// Sums over all workers. \thread any  \alloc none
  [[nodiscard]] virtual verbena::Counters counters() const noexcept = 0;
  /// Tells clients, finishes the requests that have arrived, and joins all threads. Idempotent.
  virtual void stop() noexcept = 0;
};

/// How a client's gets find their items.
enum class Lookup : std::uint8_t {
  /// By READs without the server's CPU where that is quicker: one READ for a key with a known location; for other keys
  /// through the index where READs need no queue (the software NIC), else by message.
  kAuto,
  kMessage,   ///< Always by message, so that the server sees every get.
  kOneSided,  ///< By READs, of the location or through the index; by message if READs give no answer.
};
/// "auto", "message", "one-sided". \thread any  \alloc none
[[nodiscard]] const char* to_string(Lookup lookup) noexcept;

/// Options of a client.
struct ClientOptions {
  Transport transport{};      ///< NIC and bootstrap, as the server's.
  std::string address{};      ///< The server's address or name. Empty: this host, as the server has it.
  std::uint16_t port = 7470;  ///< The server's port. 1 to 65535.
  std::chrono::milliseconds connect_timeout{5000};  ///< Deadline of `Client::connect`.
  std::chrono::milliseconds timeout{5000};          ///< Default deadline of each call.
  unsigned depth = 32;  ///< Operations in flight. 1 to the server's depth (the smaller counts).
  std::size_t buffer_bytes = std::size_t{4} << 20;  ///< Registered memory for `allocate`. 0 to 1 TiB.
  WaitPolicy wait = WaitPolicy::kAdaptive;          ///< How a blocked call waits.
  std::chrono::microseconds spin{200};              ///< With kAdaptive a blocked call polls this long, then sleeps.
  std::vector<uid_t> allowed_uids{};  ///< Users besides this process's own, and root, whose servers are trusted.
  /// File of keys, for a server that uses one: client and server prove to each other that they have the same key.
  /// Empty: none.
  std::string key_file{};
  std::string key_name{};         ///< Which key of key_file; empty: the first.
  Lookup lookup = Lookup::kAuto;  ///< How gets find their items.
  /// For how many keys the client remembers the item's location, 16 B each: those it put or got last. 0 (none), or a
  /// power of two of 4 to 2^24.
  std::size_t known_locations = 4096;
  /// The client only reads: put, cas, erase and open_cell are kDenied.
  bool read_only = false;
};

/// How the gets of a client found their items. Each get that was not refused counts in one of the first three.
template <class Number>
struct BasicLookupCounters {
  Number by_location{};  ///< By READs at a known location.
  Number by_index{};     ///< By READs of the index and of the item.
  Number by_message{};   ///< By message, also after READs gave no answer; misses always are.
  Number stale{};        ///< Known locations that were out of date; the get went on in another way.
  Number retries{};      ///< Lookups through the index that began again because a change overtook them.
  Number overtaken{};    ///< Gets by message because changes overtook every lookup.
};
/// A snapshot.
using LookupCounters = BasicLookupCounters<std::uint64_t>;

/// The outcome of one operation. By status:
/// kOk: `version` is the item's (the new one after put and cas); `length` the value's bytes (get).
/// kVersionMismatch: `version` is the current one. kBufferTooSmall: `length` is what is needed. kNotFound, kBadKey,
/// kTooLong, kStoreFull (memory: last_failure tells what fills it), kIndexFull (keys), kLimit (no version is left),
/// kWrongKind, kDenied (no right to do it), kOverQuota, kAgain, kTimedOut, kPeerLost, ...: nothing else is set.
struct Outcome {
  Status status = Status::kOk;  ///< kOk or an error.
  std::uint64_t version = 0;    ///< Version of the item, by status as above. Never 0 for an existing item.
  std::size_t length = 0;       ///< Bytes of the value, by status as above.
  /// get, with kOk and kBufferTooSmall: what is left of the value's time to live, or a little less; 0: the value does
  /// not expire.
  std::chrono::nanoseconds time_left{};
};

/// How a value is stored.
struct PutOptions {
  /// The key is absent for every call once this time has passed since the server stored the value, by the server's
  /// clock, which stands still while its machine is suspended. 1 ms to kMaxTimeToLive; empty: it stays.
  std::optional<std::chrono::milliseconds> time_to_live{};
  /// Stores the value only if the key's version is this one, as `Client::cas`; empty: whatever the version.
  std::optional<std::uint64_t> expected{};
};

/// A completed pipelined operation.
struct Completion {
  std::uint64_t cookie = 0;  ///< The cookie that you gave to start_*.
  Outcome outcome;           ///< As the blocking call returns it.
};

/// One get of a batch.
struct GetRequest {
  Key key;                   ///< 1 to 1024 B, else the outcome is kBadKey.
  std::span<std::byte> out;  ///< As in `Client::get`.
  Outcome outcome;           ///< Set by the call.
};

/// One put of a batch.
struct PutRequest {
  Key key;                           ///< 1 to 1024 B, else the outcome is kBadKey.
  std::span<const std::byte> value;  ///< As in `Client::put`.
  Outcome outcome;                   ///< Set by the call.
  PutOptions options{};              ///< As in `Client::put`.
};

/// Where a listing of keys goes on: of one prefix, at one server. A value; copy it, or keep it for later. Begin with an
/// empty one.
struct KeyCursor {
  std::uint64_t place = 0;   ///< The server's.
  std::uint64_t moves = 0;   ///< The server's.
  std::uint64_t seal = 0;    ///< The server's: it knows its own cursors by it.
  std::uint32_t worker = 0;  ///< The worker whose keys come next.
  bool is_over = false;      ///< All keys have been listed.
};

/// Goes over the keys of a page. \thread any  \alloc none
class KeyIterator {
 public:
  /// What it goes over.
  using value_type = Key;
  /// As the standard's algorithms want it.
  using difference_type = std::ptrdiff_t;
  /// The end.
  KeyIterator() = default;
  /// `left`: keys, each behind its length in two bytes.
  explicit KeyIterator(std::span<const std::byte> left) noexcept : left_(left) {}
  /// The key, in the page.
  [[nodiscard]] Key operator*() const noexcept { return left_.subspan(kLengthBytes, length()); }
  /// The next key.
  KeyIterator& operator++() noexcept {
    left_ = left_.subspan(kLengthBytes + length());
    return *this;
  }
  /// The next key; returns this one.
  KeyIterator operator++(int) noexcept {
    const KeyIterator before = *this;
    ++*this;
    return before;
  }
  /// Whether both are at the same key of one page.
  friend bool operator==(const KeyIterator& a, const KeyIterator& b) noexcept {
    return a.left_.size() == b.left_.size();
  }

 private:
  static constexpr std::size_t kLengthBytes = 2;
  [[nodiscard]] std::size_t length() const noexcept {
    return std::to_integer<std::size_t>(left_[0]) | std::to_integer<std::size_t>(left_[1]) << 8;
  }
  std::span<const std::byte> left_;
};

/// Some keys, as `Client::keys` returns them. 4 KiB; fill it in a loop. \thread any  \alloc none
struct KeyPage {
  /// What the keys of a page take at most, each with two bytes for its length.
  static constexpr std::size_t kBytes = 4064;
  std::uint32_t count = 0;              ///< How many keys.
  std::uint32_t length = 0;             ///< Bytes in use.
  std::array<std::byte, kBytes> bytes;  ///< The keys, each behind its length.

  /// The first key. Keys are valid until the page is filled again.
  [[nodiscard]] KeyIterator begin() const noexcept { return KeyIterator(std::span(bytes).first(length)); }
  /// Behind the last key.
  [[nodiscard]] KeyIterator end() const noexcept { return {}; }
};

/// The place of a cell, for the client that opened it, until its connection ends. A value; copy it freely.
struct Cell {
  std::uint64_t address = 0;  ///< Address in the server. A multiple of 8.
  std::uint32_t worker = 0;   ///< The server's worker that has it.
  bool is_new = false;        ///< Whether the call that returned it made the cell.
};

/// A connection to one server. \thread owner  Calls do not allocate once connected.
///
/// Buffers: any memory works; memory from `allocate` is registered and saves one copy of large values. The server may
/// READ it as long as the connection lives; don't change a value during its put, else a mixture may be stored.
/// A failure of the connection (kPeerLost and the like) is final: later calls return it at once; connect a new client.
class Client {
 public:
  /// Errors: kConnectionRefused, kRejected (server full, another version, or on another NIC; the text says),
  /// kNotAllowed, kTimedOut, kProtocol, kNotFound (name does not resolve, or no such device), kOtherNamespace,
  /// kOtherHost, kDevice (port down), kPermission, kLimit (locked memory), kBadArgument.
  [[nodiscard]] static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);
  virtual ~Client() = default;  ///< Disconnects, and tells the server.

  /// Stores a value of 0 B to the server's limit under a key of 1 to 1024 B.
  [[nodiscard]] virtual Outcome put(Key key, std::span<const std::byte> value, Deadline deadline) noexcept = 0;
  /// The same with options. kBadArgument: time_to_live out of its range.
  [[nodiscard]] virtual Outcome put(Key key, std::span<const std::byte> value, const PutOptions& options,
                                    Deadline deadline) noexcept = 0;
  /// Copies the value to the front of `out`. kBufferTooSmall leaves `out` unspecified.
  [[nodiscard]] virtual Outcome get(Key key, std::span<std::byte> out, Deadline deadline) noexcept = 0;
  /// Stores the value if the key's version is `expected`. `expected` 0 means that the key must not exist.
  [[nodiscard]] virtual Outcome cas(Key key, std::uint64_t expected, std::span<const std::byte> value,
                                    Deadline deadline) noexcept = 0;
  /// Removes a key and its value. kNotFound: there was no such key.
  [[nodiscard]] virtual Outcome erase(Key key, Deadline deadline) noexcept = 0;
  /// Does any number of gets: many are in flight at the same time, and share doorbells. Each has its own
  /// outcome, as a single call would return it; they take place in any order.
  virtual void get(std::span<GetRequest> requests, Deadline deadline) noexcept = 0;
  /// The same for puts.
  virtual void put(std::span<PutRequest> requests, Deadline deadline) noexcept = 0;
  /// The same with the default deadline.
  [[nodiscard]] Outcome put(Key key, std::span<const std::byte> value) noexcept { return put(key, value, deadline()); }
  /// \overload
  [[nodiscard]] Outcome put(Key key, std::span<const std::byte> value, const PutOptions& options) noexcept {
    return put(key, value, options, deadline());
  }
  /// \overload
  [[nodiscard]] Outcome get(Key key, std::span<std::byte> out) noexcept { return get_in_default_time(key, out); }
  /// \overload
  [[nodiscard]] Outcome cas(Key key, std::uint64_t expected, std::span<const std::byte> value) noexcept {
    return cas(key, expected, value, deadline());
  }
  /// \overload
  [[nodiscard]] Outcome erase(Key key) noexcept { return erase(key, deadline()); }
  /// \overload
  void get(std::span<GetRequest> requests) noexcept { get(requests, deadline()); }
  /// \overload
  void put(std::span<PutRequest> requests) noexcept { put(requests, deadline()); }

  /// Cells: words of 8 bytes under a key, which the NICs change and read without the server's CPU, even while that is
  /// busy. A cell stays until the server ends; the calls above return kWrongKind for its key. A server has cells if
  /// ServerOptions::max_cells is not 0.
  ///
  /// Opens the cell under `key`; if there is no such key, makes a cell that holds `initial`. Works by message; the
  /// first call for each worker imports its cells, which allocates. Errors: kWrongKind (the key has a value), kLimit
  /// (there are max_cells already), kUnsupported (the server has no cells), kBadKey, kStoreFull, kIndexFull, kDenied
  /// (cells need the rights to read and to write all keys), kOverQuota, kTimedOut (the cell may have been made; open it
  /// again), and those that end the connection.
  [[nodiscard]] virtual Result<Cell> open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept = 0;
  /// Adds `delta`, modulo 2^64; `old` becomes the value before. kTimedOut, kPeerLost and the like: the addition may
  /// have happened or not; `old` is 0 then. After kTimedOut it may still happen, and the connection goes on.
  /// kUnsupported: this side's device has no atomics. kBadArgument, kOutOfRange: this client did not open `cell`.
  [[nodiscard]] virtual Status fetch_add(const Cell& cell, std::uint64_t delta, std::uint64_t& old,
                                         Deadline deadline) noexcept = 0;
  /// Replaces `expected` with `desired`; `old` becomes the value before. kOk either way: it was swapped if `old` is
  /// `expected`. Otherwise as fetch_add.
  [[nodiscard]] virtual Status compare_swap(const Cell& cell, std::uint64_t expected, std::uint64_t desired,
                                            std::uint64_t& old, Deadline deadline) noexcept = 0;
  /// Reads the cell. Statuses as in fetch_add.
  [[nodiscard]] virtual Status read(const Cell& cell, std::uint64_t& value, Deadline deadline) noexcept = 0;
  /// The same with the default deadline.
  [[nodiscard]] Result<Cell> open_cell(Key key, std::uint64_t initial) noexcept {
    return open_cell(key, initial, deadline());
  }
  /// \overload
  [[nodiscard]] Status fetch_add(const Cell& cell, std::uint64_t delta, std::uint64_t& old) noexcept {
    return fetch_add(cell, delta, old, deadline());
  }
  /// \overload
  [[nodiscard]] Status compare_swap(const Cell& cell, std::uint64_t expected, std::uint64_t desired,
                                    std::uint64_t& old) noexcept {
    return compare_swap(cell, expected, desired, old, deadline());
  }
  /// \overload
  [[nodiscard]] Status read(const Cell& cell, std::uint64_t& value) noexcept { return read(cell, value, deadline()); }

  /// Lists the keys that begin with `prefix` (0 to 1024 B), cells' keys too, a page at a time and in no order: each
  /// call fills `page` with some, perhaps none, and moves `cursor` on, until that is over. Whatever others change
  /// meanwhile, each key that is there from the first call to the last is listed at least once; one may be listed
  /// twice. A call keeps a worker busy for some 50 us. Errors, which leave `page` empty and `cursor` as it is:
  /// kBadArgument (a cursor of another server or prefix, or made up), kBadKey (prefix too long), kDenied (needs the
  /// right to read all keys that begin with `prefix`), kTimedOut, and those that end the connection.
  [[nodiscard]] virtual Status keys(Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept = 0;
  /// Erases the keys that begin with `prefix`, and with an empty one all keys, but no cells. All that are there during
  /// the call, and that nobody puts meanwhile, are gone when it returns kOk. `erased` becomes their number, with errors
  /// too: after kTimedOut, the rest is still there. kDenied: needs the right to write all keys that begin with
  /// `prefix`.
  [[nodiscard]] virtual Status flush(Key prefix, std::uint64_t& erased, Deadline deadline) noexcept = 0;
  /// The same with the default deadline.
  [[nodiscard]] Status keys(Key prefix, KeyCursor& cursor, KeyPage& page) noexcept {
    return keys(prefix, cursor, page, deadline());
  }
  /// \overload
  [[nodiscard]] Status flush(Key prefix, std::uint64_t& erased) noexcept { return flush(prefix, erased, deadline()); }

  /// Starts a put and returns kOk, kAgain when `depth` are in flight (poll, then try again), or the reason why
  /// it can never work. The call copies key and value, except if they lie in memory from `allocate`: those must stay
  /// until the completion. It refuses other values of kEagerBytes and more with kBadArgument (use the blocking call).
  /// Operations that are in flight together take place in any order.
  /// A put completes with kAgain if the free memory still waits out its grace period (see ServerOptions::grace): start
  /// it again. The blocking calls do that by themselves until their deadline.
  [[nodiscard]] virtual Status start_put(Key key, std::span<const std::byte> value, std::uint64_t cookie) noexcept = 0;
  /// Starts a put as Client::put with options does.
  [[nodiscard]] virtual Status start_put(Key key, std::span<const std::byte> value, const PutOptions& options,
                                         std::uint64_t cookie) noexcept = 0;
  /// Starts a get. `out` must stay until the completion. Otherwise as start_put.
  [[nodiscard]] virtual Status start_get(Key key, std::span<std::byte> out, std::uint64_t cookie) noexcept = 0;
  /// Returns the completions that have come, up to completions.size(), without waiting. Operations older than the
  /// default deadline complete with kTimedOut and end the connection.
  [[nodiscard]] virtual std::size_t poll(std::span<Completion> completions) noexcept = 0;
  /// The same, but waits until a completion has come, nothing is in flight, or the deadline has passed.
  [[nodiscard]] virtual std::size_t wait(std::span<Completion> completions, Deadline deadline) noexcept = 0;
  /// Operations started and not yet returned by `poll` or `wait`.
  [[nodiscard]] virtual std::size_t in_flight() const noexcept = 0;

  /// Waits until nothing is under way that was given up, by its deadline or by a coroutine: kOk; or kTimedOut. Until
  /// then memory from `allocate` must not change that a put was given up with.
  [[nodiscard]] virtual Status settle(Deadline /*deadline*/) noexcept { return Status::kOk; }

  /// Registered memory of this client, 64-byte aligned; empty when buffer_bytes are used up. Freed with the client.
  [[nodiscard]] virtual std::span<std::byte> allocate(std::size_t bytes) noexcept = 0;

  /// Asks worker 0 for the server's statistics. It takes several messages, so counts may be of slightly different
  /// times. kDenied: needs the right to administer.
  [[nodiscard]] virtual Result<ServerStatistics> server_statistics(Deadline deadline) noexcept = 0;
  /// The server's limit on values.
  [[nodiscard]] virtual std::size_t max_value_bytes() const noexcept = 0;
  /// Counts of this client. \thread any  \alloc none
  [[nodiscard]] virtual verbena::Counters counters() const noexcept = 0;
  /// How this client's gets found their items. \thread any  \alloc none
  [[nodiscard]] virtual LookupCounters lookups() const noexcept = 0;
  /// The failure that ended the connection, with cause and fix; kOk while it works.
  [[nodiscard]] virtual Error connection_error() const noexcept = 0;
  /// One line: server, NIC and why, bootstrap. Valid as long as the client.
  [[nodiscard]] virtual const char* description() const noexcept = 0;

 protected:
  /// The default deadline of a call that begins now.
  [[nodiscard]] virtual Deadline deadline() const noexcept = 0;
  /// A get with the default deadline: whoever need not wait for the value need not read the clock either.
  [[nodiscard]] virtual Outcome get_in_default_time(Key key, std::span<std::byte> out) noexcept {
    return get(key, out, deadline());
  }

 private:
  friend class coroutine::detail::KvWait;
  /// For coroutines; null: its operations cannot be awaited.
  [[nodiscard]] virtual PollingClient* polled() noexcept { return nullptr; }
};

}  // namespace verbena::kv

#pragma GCC visibility pop
