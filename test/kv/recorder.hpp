// Clients that do random calls on a few keys and write each into a journal that processes share.
#pragma once

#include "history.hpp"

#include "base/threads.hpp"

#include <verbena/deadline.hpp>
#include <verbena/kv.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::kv::history {

/// CLOCK_MONOTONIC, which all processes of a machine read alike; in a simulation, its clock.
[[nodiscard]] inline std::uint64_t now_ns() {
#if defined(VERBENA_SIMULATION)
  return ticks_now();
#else
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
#endif
}

// --- values that tell their name, whole or not at all

/// What values of a plan are long; at least 8 bytes.
using Sizes = std::span<const std::uint32_t>;

/// The length is in the name, so that a value cut short is none. `number` below 2^24, unique for its client.
[[nodiscard]] constexpr std::uint64_t name_of(std::uint32_t length, unsigned client, std::uint64_t number) {
  return std::uint64_t{length} << 32 | std::uint64_t{client} << 24 | number;
}
[[nodiscard]] constexpr std::uint64_t word_of(std::uint64_t name, std::size_t index) {
  const std::uint64_t mixed = (name ^ index) * 0x9E3779B97F4A7C15U;
  return index == 0 ? name : mixed ^ mixed >> 29;
}

inline void fill_value(std::span<std::byte> value, std::uint64_t name) {
  const std::size_t words = value.size() / 8;
  for (std::size_t at = 0; at < words; ++at) {
    const std::uint64_t word = word_of(name, at);
    std::memcpy(value.data() + at * 8, &word, sizeof word);
  }
  const std::uint64_t last = word_of(name, words);
  std::memcpy(value.data() + words * 8, &last, value.size() % 8);
}

/// The name, if the bytes are that value and nothing else.
[[nodiscard]] inline std::optional<std::uint64_t> read_value(std::span<const std::byte> value) {
  std::uint64_t name = 0;
  if (value.size() < sizeof name) return std::nullopt;
  std::memcpy(&name, value.data(), sizeof name);
  if (name >> 32 != value.size()) return std::nullopt;
  const std::size_t words = value.size() / 8;
  for (std::size_t at = 0; at < words; ++at) {
    std::uint64_t found = 0;
    std::memcpy(&found, value.data() + at * 8, sizeof found);
    if (found != word_of(name, at)) return std::nullopt;
  }
  const std::uint64_t last = word_of(name, words);
  if (std::memcmp(value.data() + words * 8, &last, value.size() % 8) != 0) return std::nullopt;
  return name;
}

// --- the journal

/// A part for each client, which it alone writes. What a killed client left stays as it is: a call without an end.
class Journal {
 public:
  /// `meets`: see Plan.
  Journal(unsigned clients, std::size_t calls_each, unsigned meets = 0) : fd_(memfd_create("history", 0)) {
    const Head head{clients, calls_each, meets};
    if (ftruncate(fd_, static_cast<off_t>(bytes_of(head))) == 0 && map(bytes_of(head))) *at<Head>(0) = head;
  }
  /// The journal of another process, by a descriptor that was inherited.
  explicit Journal(int fd) : fd_(dup(fd)) {
    if (!map(sizeof(Head))) return;
    const Head head = *at<Head>(0);
    munmap(memory_, bytes_);
    memory_ = nullptr;
    (void)map(bytes_of(head));
  }
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal() {
    if (memory_ != nullptr) munmap(memory_, bytes_);
    close(fd_);
  }
  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }
  /// Processes that are started inherit it.
  [[nodiscard]] int fd() const noexcept { return fd_; }

  /// Writes down that a call begins. Null when the client's part is full.
  [[nodiscard]] Call* begin(Call call) {
    std::atomic_ref<std::uint64_t> count(count_of(call.client)->calls);
    const std::uint64_t index = count.load(std::memory_order_relaxed);
    if (is_full(call.client)) return nullptr;
    Call* const mine = calls_of(call.client) + index;
    call.invoked_ns = now_ns();
    *mine = call;
    count.store(index + 1, std::memory_order_release);
    if (listener_) listener_(*mine, "begins");
    if (head().meets != 0 && index % head().meets == 0) meet(call.client, index);
    return mine;
  }
  /// Says that a client does nothing more, so that nobody waits for it. \thread any
  void leave(unsigned client) { std::atomic_ref(count_of(client)->has_left).store(1, std::memory_order_release); }
  /// `value` and `version` are of the call already.
  void end(Call& call, End end) const {
    call.returned_ns = now_ns();
    std::atomic_ref(call.end).store(end, std::memory_order_release);
    if (listener_) listener_(call, "ends");
  }
  /// The call stays without an end.
  void leave_open(const Call& call, Status why) const {
    if (listener_) listener_(call, to_string(why));
  }
  /// Who hears, in this process, of each call that begins, ends, or stays without an end, and then why. For stories.
  using Listener = std::function<void(const Call& call, std::string_view what)>;
  void set_listener(Listener listener) { listener_ = std::move(listener); }
  /// What a client has begun last; null: nothing. \thread the client's
  [[nodiscard]] const Call* last(unsigned client) const {
    return count(client) == 0 ? nullptr : calls_of(client) + count(client) - 1;
  }
  /// Calls that a client has begun. \thread any
  [[nodiscard]] std::uint64_t count(unsigned client) const {
    return std::atomic_ref<std::uint64_t>(count_of(client)->calls).load(std::memory_order_acquire);
  }
  [[nodiscard]] bool is_full(unsigned client) const {
    return (closed_ >> client & 1) != 0 || count(client) == head().calls_each;
  }
  /// From now on no call is written down here: all parts are full. \thread one, before or after all calls
  void end_all() noexcept { closed_ = ~std::uint64_t{0}; }
  /// The same for one client, of the first 64, in this process. \thread the client's
  void end_of(unsigned client) noexcept { closed_ |= std::uint64_t{1} << client; }

  /// All of it, once its clients have ended.
  [[nodiscard]] std::vector<Call> calls() const {
    std::vector<Call> all;
    for (unsigned client = 0; client < head().clients; ++client) {
      const std::span its(calls_of(client), count(client));
      for (Call call : its) {
        if (call.end == End::kOpen) call.version = 0;  // Of an answer that came as its client was killed.
        all.push_back(call);
      }
    }
    return all;
  }

 private:
  struct alignas(64) Head {
    std::uint64_t clients = 0;
    std::uint64_t calls_each = 0;
    std::uint64_t meets = 0;
  };
  struct alignas(64) Count {
    std::uint64_t calls = 0;
    std::uint64_t has_left = 0;
  };
  /// Waits until each client has begun its call `index`, or has left, so that these calls overlap however few
  /// processors there are; 10 s at most, should one of them hang.
  void meet(unsigned client, std::uint64_t index) const {
    const Deadline deadline = Deadline::after(std::chrono::seconds{10});
    for (unsigned other = 0; other < head().clients; ++other) {
      const std::atomic_ref<std::uint64_t> has_left(count_of(other)->has_left);
      while (other != client && count(other) <= index && has_left.load(std::memory_order_acquire) == 0 &&
             !deadline.passed())
        yield_thread();
    }
  }
  static std::size_t bytes_of(const Head& head) {
    return sizeof(Head) + head.clients * (sizeof(Count) + head.calls_each * sizeof(Call));
  }
  bool map(std::size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) return false;
    memory_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    return true;
  }
  template <class T>
  [[nodiscard]] T* at(std::size_t offset) const {
    return std::launder(reinterpret_cast<T*>(memory_ + offset));
  }
  [[nodiscard]] const Head& head() const { return *at<Head>(0); }
  [[nodiscard]] Count* count_of(unsigned client) const { return at<Count>(sizeof(Head) + client * sizeof(Count)); }
  [[nodiscard]] Call* calls_of(unsigned client) const {
    return at<Call>(sizeof(Head) + head().clients * sizeof(Count) + client * head().calls_each * sizeof(Call));
  }

  int fd_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t closed_ = 0;  ///< A bit for each client whose part is full, however little is in it.
  Listener listener_;
};

// --- clients

/// What the clients of a run do.
struct Plan {
  const char* name;
  Sizes sizes;
  unsigned keys = 3;
  unsigned cells = 0;       ///< Keys of cells, numbered behind the others.
  unsigned calls = 1000;    ///< Of each client.
  unsigned gets = 50;       ///< Of a hundred calls. The rest are changes.
  bool only_cells = false;  ///< All calls are on cells.
  std::chrono::milliseconds timeout{20'000};
  unsigned meets = 0;      ///< The first of each so many calls begins when all clients have come to theirs; 0: none.
  unsigned impatient = 0;  ///< Calls of each client that give up at once: their outcome is unknown.
  /// How long after its deadline a connect, or a call that does not end the connection, may return; 0: nobody looks.
  std::chrono::nanoseconds slack{0};
  std::chrono::milliseconds longest_ttl{0};  ///< Half of the values that blocking calls store live for this at most.
  bool may_evict = false;                    ///< The server does.
  unsigned turn = 0;  ///< Which way of looking keys up the first client takes; the others take the next ones.
};

/// What a client is doing: it connects, or calls.
enum class Doing : std::uint8_t { kConnecting, kOne, kCell, kBatch, kSeveral };

[[nodiscard]] inline std::string name_of_key(std::uint32_t key) { return "hot" + std::to_string(key); }

/// One client and its part of the journal. \thread owner
class Caller {
 public:
  Caller(Journal& journal, unsigned number, const Plan& plan, const ClientOptions& options, std::uint64_t seed)
      : journal_(journal),
        plan_(plan),
        options_(options),
        random_(seed * 1000 + number),
        number_(static_cast<std::uint16_t>(number)),
        longest_(*std::ranges::max_element(plan.sizes)),
        impatient_(plan.impatient),
        versions_(plan.keys),
        words_(plan.cells),
        own_(kBurst) {
    options_.timeout = options_.connect_timeout = plan.timeout;
    // Ways to the same keys: one by one, and all of them meet in a history.
    constexpr std::array kLookups{Lookup::kAuto, Lookup::kOneSided, Lookup::kOneSided, Lookup::kMessage};
    const std::size_t way = (number + plan.turn) % kLookups.size();
    options_.lookup = kLookups[way];
    if (way == 2) options_.known_locations = 0;  // Through the index each time.
    options_.buffer_bytes = kBurst * (longest_ + std::size_t{64});
    for (auto& bytes : own_) bytes.resize(longest_);
  }

  /// Calls until its part of the journal is full. A connection that breaks is made anew.
  /// \return what is wrong, or ""
  std::string run() {
    while (!journal_.is_full(number_)) {
      if (std::string wrong = connect(); !wrong.empty()) return wrong;
      while (client_->connection_error().status() == Status::kOk && wrong_.empty()) {
        const std::uint64_t kind = random_() % 6;
        const bool is_of_cell = plan_.only_cells || (kind == 2 && !cells_.empty());
        doing_ = is_of_cell ? Doing::kCell : kind == 0 ? Doing::kSeveral : kind == 1 ? Doing::kBatch : Doing::kOne;
        const bool goes_on = is_of_cell  ? call_cell()
                             : kind == 0 ? call_several()
                             : kind == 1 ? call_batch()
                                         : call_one();
        if (!goes_on) break;
      }
      if (!wrong_.empty()) return wrong_;
      broken_ = client_->connection_error();
      // Neither side sends what the other has no room for, or does not understand.
      if (broken_.status() == Status::kProtocol) return std::string("the protocol is broken: ") + broken_.text();
    }
    return {};
  }
  [[nodiscard]] Doing doing() const noexcept { return doing_; }
  [[nodiscard]] unsigned connections() const noexcept { return connections_; }
  /// Why the connection ended that ended last.
  [[nodiscard]] const Error& broken() const noexcept { return broken_; }
  /// Of the connection at last.
  [[nodiscard]] LookupCounters lookups() const noexcept { return client_ ? client_->lookups() : LookupCounters{}; }

 private:
  static constexpr std::size_t kBurst = 4;

  std::string connect() {
    doing_ = Doing::kConnecting;
    client_.reset();
    if (++connections_ > kMostConnections) return "the connection breaks again and again";
    // With faults injected it may take some tries.
    for (unsigned tries = 1;; ++tries) {
      const Deadline latest = Deadline::after(options_.connect_timeout + plan_.slack);
      auto client = Client::connect(options_);
      if (plan_.slack.count() != 0 && latest.passed()) return "a connect came back later than its deadline";
      if (client) {
        client_ = std::move(*client);
        break;
      }
      if (tries == kMostTries) return std::string("cannot connect: ") + client.error().text();
    }
    for (auto& memory : registered_) {
      memory = client_->allocate(longest_);
      if (memory.size() != longest_) return "no registered memory";
    }
    return open_cells();
  }
  /// All hold 0 at first, whoever opens them first.
  std::string open_cells() {
    cells_.clear();
    for (unsigned i = 0; i < plan_.cells; ++i) {
      const std::string key = name_of_key(plan_.keys + i);
      const auto cell = client_->open_cell(std::as_bytes(std::span(key)), 0);
      // The next connection may do better.
      if (!cell && client_->connection_error().status() != Status::kOk) return {};
      // With faults injected it may take some tries, as connecting does.
      if (!cell && is_unknown(cell.error().status()) && ++late_cells_ <= kMostLateCells) {
        --i;
        continue;
      }
      if (!cell) return std::string("cannot open a cell: ") + cell.error().text();
      cells_.push_back(*cell);
    }
    return {};
  }

  /// Memory number `index`, registered or not.
  std::span<std::byte> memory(std::size_t index, std::size_t bytes, bool must_be_registered = false) {
    const bool is_registered = must_be_registered || random_() % 2 == 0;
    return (is_registered ? registered_[index] : std::span(own_[index])).first(bytes);
  }
  [[nodiscard]] std::span<const std::byte> key_of(const Call& call) {
    key_ = name_of_key(call.key);
    return std::as_bytes(std::span(key_));
  }
  Call random_call(bool is_pipelined) {
    Call call{.client = number_, .key = static_cast<std::uint32_t>(random_() % plan_.keys)};
    if (random_() % 100 < plan_.gets) return call;
    const std::uint64_t kind = is_pipelined ? 0 : random_() % 5;
    call.op = kind < 2 ? Op::kPut : kind < 4 ? Op::kCas : Op::kErase;
    if (call.op == Op::kErase) return call;
    const std::uint32_t length = plan_.sizes[random_() % plan_.sizes.size()];
    call.value = name_of(length, number_, ++stored_);
    call.may_be_evicted = plan_.may_evict;
    if (!is_pipelined && plan_.longest_ttl.count() != 0 && random_() % 2 == 0) {
      const std::uint64_t ms = 1 + random_() % static_cast<std::uint64_t>(plan_.longest_ttl.count());
      call.ttl_ns = ms * 1'000'000;
    }
    // What it saw last, mostly; a version that never was and none at all now and then.
    if (call.op == Op::kCas) call.expected = random_() % 4 == 0 ? random_() % 2 : versions_[call.key];
    return call;
  }
  static PutOptions terms_of(const Call& call) {
    PutOptions terms;
    if (call.ttl_ns != 0) terms.time_to_live = std::chrono::milliseconds(call.ttl_ns / 1'000'000);
    if (call.op == Op::kCas) terms.expected = call.expected;
    return terms;
  }
  static std::size_t length_of(const Call& call) { return static_cast<std::size_t>(call.value >> 32); }

  bool call_one() {
    Call* const call = journal_.begin(random_call(false));
    if (call == nullptr) return false;
    // A large value that times out ends the connection, which is another story.
    const bool is_small = call->op == Op::kErase || (call->op != Op::kGet && length_of(*call) < kEagerBytes);
    Deadline deadline = Deadline::after(options_.timeout);
    if (is_small && impatient_ != 0 && random_() % 8 == 0) {
      --impatient_;
      deadline = random_() % 2 == 0 ? Deadline::now() : Deadline::after(std::chrono::microseconds(random_() % 30));
    }
    const Deadline latest =
        deadline.ticks() == 0 ? Deadline::after(plan_.slack) : Deadline::after(deadline.left() + plan_.slack);
    const Key key = key_of(*call);
    std::span<std::byte> bytes = memory(0, call->op == Op::kGet ? longest_ : length_of(*call));
    if (call->op == Op::kPut || call->op == Op::kCas) fill_value(bytes, call->value);
    switch (call->op) {
      case Op::kGet: end(*call, client_->get(key, bytes, deadline), bytes); break;
      case Op::kPut:
      case Op::kCas: end(*call, client_->put(key, bytes, terms_of(*call), deadline), bytes); break;
      default: end(*call, client_->erase(key, deadline), bytes);
    }
    const bool is_checked = plan_.slack.count() != 0 && client_->connection_error().status() == Status::kOk;
    if (is_checked && latest.passed() && wrong_.empty()) wrong_ = "later than its deadline: " + to_text(*call);
    return true;
  }

  /// Some at the same time, of one client.
  bool call_several() {
    std::array<Call*, kBurst> calls{};
    std::array<std::span<std::byte>, kBurst> bytes;
    std::size_t started = 0;
    for (; started < kBurst; ++started) {
      Call*& call = calls[started];
      call = journal_.begin(random_call(true));
      if (call == nullptr) break;
      const Key key = key_of(*call);
      const bool is_put = call->op == Op::kPut;
      bytes[started] =
          is_put ? memory(started, length_of(*call), length_of(*call) >= kEagerBytes) : memory(started, longest_);
      if (is_put) fill_value(bytes[started], call->value);
      const Status status =
          is_put ? client_->start_put(key, bytes[started], started) : client_->start_get(key, bytes[started], started);
      if (status != Status::kOk) {
        end(*call, {status}, bytes[started]);
        break;
      }
    }
    std::array<Completion, kBurst> ended;
    while (client_->in_flight() != 0) {
      const std::size_t count = client_->wait(ended, Deadline::never());
      for (const Completion& completion : std::span(ended).first(count))
        end(*calls[completion.cookie], completion.outcome, bytes[completion.cookie]);
    }
    return started != 0;
  }

  bool call_cell() {
    const std::size_t index = random_() % cells_.size();
    const std::uint64_t kind = random_() % 5;
    Call* const call = journal_.begin({.op = kind < 2   ? Op::kCellRead
                                             : kind < 4 ? Op::kCellAdd
                                                        : Op::kCellSwap,
                                       .client = number_,
                                       .key = static_cast<std::uint32_t>(plan_.keys + index),
                                       .expected = kind == 4 ? words_[index] : 0,
                                       .argument = kind < 2 ? 0 : 1 + random_() % 1000});
    if (call == nullptr) return false;
    const Cell& cell = cells_[index];
    std::uint64_t found = 0;
    const Status status = kind < 2   ? client_->read(cell, found)
                          : kind < 4 ? client_->fetch_add(cell, call->argument, found)
                                     : client_->compare_swap(cell, call->expected, call->argument, found);
    if (status == Status::kOk) {
      call->value = found;
      words_[index] = kind == 2 || kind == 3 ? found + call->argument : found;
      journal_.end(*call, End::kOk);
    } else {
      if (!is_unknown(status)) wrong_ = std::string(to_string(status)) + " for " + to_text(*call);
      journal_.leave_open(*call, status);
    }
    return true;
  }

  /// Some by one call.
  bool call_batch() {
    std::array<Call*, kBurst> calls{};
    std::array<GetRequest, kBurst> gets;
    std::array<std::string, kBurst> keys;
    std::size_t count = 0;
    for (; count < kBurst; ++count) {
      const auto key = static_cast<std::uint32_t>(random_() % plan_.keys);
      calls[count] = journal_.begin({.client = number_, .key = key});
      if (calls[count] == nullptr) break;
      keys[count] = name_of_key(key);
      gets[count] = {.key = std::as_bytes(std::span(keys[count])), .out = memory(count, longest_), .outcome = {}};
    }
    client_->get(std::span(gets).first(count));
    for (std::size_t i = 0; i < count; ++i) end(*calls[i], gets[i].outcome, gets[i].out);
    return count != 0;
  }

  void end(Call& call, const Outcome& outcome, std::span<const std::byte> bytes) {
    const std::optional<End> how = end_of(outcome.status);
    if (!how) {
      if (!is_unknown(outcome.status)) wrong_ = std::string(to_string(outcome.status)) + " for " + to_text(call);
      return journal_.leave_open(call, outcome.status);
    }
    call.version = outcome.version;
    if (call.op == Op::kGet && *how == End::kOk) {
      const std::optional<std::uint64_t> name =
          outcome.length <= bytes.size() ? read_value(bytes.first(outcome.length)) : std::nullopt;
      call.value = name.value_or(0);
      if (!name) return journal_.end(call, End::kTorn);
    }
    if (call.op == Op::kErase || *how == End::kNotFound) {
      versions_[call.key] = 0;
    } else if (*how != End::kNothing) {
      versions_[call.key] = call.version;
    }
    journal_.end(call, *how);
  }

  static std::optional<End> end_of(Status status) {
    switch (status) {
      case Status::kOk: return End::kOk;
      case Status::kNotFound: return End::kNotFound;
      case Status::kVersionMismatch: return End::kMismatch;
      case Status::kStoreFull:
      case Status::kAgain: return End::kNothing;
      default: return std::nullopt;
    }
  }
  static bool is_unknown(Status status) {
    return status == Status::kTimedOut || damage_of(status) >= Damage::kConnection;
  }

  static constexpr unsigned kMostConnections = 200;
  static constexpr unsigned kMostTries = 20;
  static constexpr unsigned kMostLateCells = 1000;

  Journal& journal_;
  const Plan& plan_;
  ClientOptions options_;
  std::mt19937_64 random_;
  std::uint16_t number_;
  std::uint32_t longest_;
  unsigned impatient_;
  std::vector<std::uint64_t> versions_;  // Of each key, as seen last.
  std::vector<std::uint64_t> words_;     // The same of each cell.
  std::vector<Cell> cells_;
  std::vector<std::vector<std::byte>> own_;
  std::array<std::span<std::byte>, kBurst> registered_;
  std::string key_;
  std::uint64_t stored_ = 0;
  unsigned connections_ = 0;
  unsigned late_cells_ = 0;
  Doing doing_ = Doing::kConnecting;
  std::string wrong_;
  Error broken_;
  std::unique_ptr<Client> client_;
};

}  // namespace verbena::kv::history
