// The client as its user sees it: who calls, and which part of it answers.
#pragma once

#include "base/fork.hpp"
#include "kv/gets.hpp"
#include "kv/links.hpp"
#include "kv/operation.hpp"
#include "kv/puts.hpp"
#include "kv/requests.hpp"
#include "kv/scans.hpp"
#include "kv/words.hpp"

#include <verbena/kv.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

namespace verbena::kv {

/// Polls the client for those who await its operations: of a room below, in memory of the client's.
class Poller {
 public:
  virtual ~Poller() = default;
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  /// The client ends, and has told everybody.
  virtual void settle() noexcept = 0;

 protected:
  Poller() noexcept = default;
};
inline constexpr std::size_t kPollerBytes = 64;
inline constexpr std::size_t kPollerAlignment = 8;

class PollingClient final : public Client {
 public:
  explicit PollingClient(const ClientOptions& options) : links_(options) {}
  ~PollingClient() override;
  static void operator delete(PollingClient* client, std::destroying_delete_t) noexcept {
    delete_unless_forked(client);
  }
  [[nodiscard]] Result<void> connect();
  /// The memory that a client of a server with `workers` workers allocates. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits,
                                                 const ClientOptions& options, unsigned workers);

  Outcome put(Key key, std::span<const std::byte> value, Deadline deadline) noexcept override {
    return requests_.run({.op = wire::Op::kPut, .key = key, .value = value}, deadline);
  }
  Outcome put(Key key, std::span<const std::byte> value, const PutOptions& options,
              Deadline deadline) noexcept override {
    return requests_.put({.op = wire::Op::kPut, .key = key, .value = value}, options, deadline);
  }
  Outcome get(Key key, std::span<std::byte> out, Deadline deadline) noexcept override;
  Outcome cas(Key key, std::uint64_t expected, std::span<const std::byte> value, Deadline deadline) noexcept override {
    return requests_.run({.op = wire::Op::kCas, .expected = expected, .key = key, .value = value}, deadline);
  }
  Outcome erase(Key key, Deadline deadline) noexcept override {
    return requests_.run({.op = wire::Op::kErase, .key = key}, deadline);
  }
  void get(std::span<GetRequest> requests, Deadline deadline) noexcept override { requests_.get(requests, deadline); }
  void put(std::span<PutRequest> requests, Deadline deadline) noexcept override { requests_.put(requests, deadline); }
  Result<Cell> open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept override {
    return words_.open_cell(key, initial, deadline);
  }
  Status fetch_add(const Cell& cell, std::uint64_t delta, std::uint64_t& old, Deadline deadline) noexcept override {
    return words_.change(cell, {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = delta}, old, deadline);
  }
  Status compare_swap(const Cell& cell, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                      Deadline deadline) noexcept override {
    return words_.change(cell, {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, old,
                         deadline);
  }
  Status read(const Cell& cell, std::uint64_t& value, Deadline deadline) noexcept override {
    return words_.read(cell, value, deadline);
  }
  Status keys(Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept override {
    return scans_.keys(prefix, cursor, page, deadline);
  }
  Status flush(Key prefix, std::uint64_t& erased, Deadline deadline) noexcept override {
    return scans_.flush(prefix, erased, deadline);
  }
  Status start_put(Key key, std::span<const std::byte> value, std::uint64_t cookie) noexcept override {
    return requests_.start_pipelined({.op = wire::Op::kPut, .key = key, .value = value}, cookie);
  }
  Status start_put(Key key, std::span<const std::byte> value, const PutOptions& options,
                   std::uint64_t cookie) noexcept override;
  Status start_get(Key key, std::span<std::byte> out, std::uint64_t cookie) noexcept override {
    return requests_.start_pipelined({.op = wire::Op::kGet, .key = key, .out = out}, cookie);
  }
  std::size_t poll(std::span<Completion> completions) noexcept override { return requests_.poll(completions); }
  std::size_t wait(std::span<Completion> completions, Deadline deadline) noexcept override {
    return requests_.wait(completions, deadline);
  }
  std::size_t in_flight() const noexcept override { return requests_.pipelined(); }
  std::span<std::byte> allocate(std::size_t bytes) noexcept override { return links_.allocate(bytes); }
  Result<ServerStatistics> server_statistics(Deadline deadline) noexcept override {
    return scans_.statistics(deadline);
  }
  std::size_t max_value_bytes() const noexcept override { return links_.server().max_value_bytes; }
  verbena::Counters counters() const noexcept override { return links_.loop().counters(); }
  LookupCounters lookups() const noexcept override;
  Error connection_error() const noexcept override { return links_.connection_error(); }
  const char* description() const noexcept override { return links_.description(); }
  Status settle(Deadline deadline) noexcept override { return requests_.settle(deadline); }

  // --- awaited. \thread owner
  /// Whether others than `who` await something of it. \thread any
  [[nodiscard]] bool is_awaited_by_another(const void* who) const noexcept {
    return requests_.is_awaited_by_another(who);
  }
  /// True: it is over, and its outcome is set. False: begin it.
  [[nodiscard]] bool carry_out_now(AwaitedCall& call) noexcept { return requests_.carry_out_now(call); }
  /// False: it is over, and nobody is told. Else `tell` is called once, unless `withdraw` returns true.
  [[nodiscard]] bool begin(AwaitedCall& call, const void* who) noexcept { return requests_.begin(call, who); }
  /// Takes it back: nobody is told, and its memory is the caller's. False: it was told before.
  [[nodiscard]] bool withdraw(AwaitedCall& call) noexcept { return requests_.withdraw(call); }
  void look() noexcept { requests_.look(); }
  /// Looks, and sleeps until something has come, the deadline, or `wake`.
  void sleep(Deadline deadline) noexcept { requests_.sleep(deadline); }
  /// \thread any
  void wake() noexcept { links_.loop().wake(); }
  [[nodiscard]] Deadline default_deadline() const noexcept { return deadline(); }
  template <std::derived_from<Poller> Kind>
  [[nodiscard]] Kind& poller() noexcept {
    static_assert(sizeof(Kind) <= kPollerBytes);
    if (poller_ == nullptr) poller_ = new (poller_memory_.data()) Kind(*this);
    return static_cast<Kind&>(*poller_);
  }

 private:
  Deadline deadline() const noexcept override { return Deadline::after(links_.options().timeout); }
  Outcome get_in_default_time(Key key, std::span<std::byte> out) noexcept override;
  PollingClient* polled() noexcept override { return this; }
  /// `limit()` is the deadline, and is asked for at most once, before the first wait.
  template <class Limit>
  [[nodiscard]] Outcome get_until(Key key, std::span<std::byte> out, Deadline of_reads, Limit&& limit) noexcept;

  Links links_;
  Requests requests_{links_, gets_, puts_, words_, scans_};
  Gets gets_{links_, requests_, scans_};
  Puts puts_{links_};
  Words words_{links_, requests_};
  Scans scans_{links_, requests_, gets_.counts()};
  Poller* poller_ = nullptr;
  alignas(kPollerAlignment) std::array<std::byte, kPollerBytes> poller_memory_{};
};

}  // namespace verbena::kv
