/// \file
/// Awaitable operations of key-value clients: what kv::Client does, with the coroutine suspended instead of the thread.
#pragma once

#include <verbena/coroutine_task.hpp>
#include <verbena/kv.hpp>

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>

#pragma GCC visibility push(default)

/// Awaits operations of a kv::Client, each with the outcome of the blocking call; or kTimedOut (its deadline; without
/// one ClientOptions::timeout), kCancelled (its scope), kBusy (another thread than the loop's, or another loop awaits
/// something of the client), kLimit (LoopOptions::waits wait). More than ClientOptions::depth wait for each other,
/// first come first served. Puts that find memory in its grace period are repeated until the deadline, then kStoreFull.
/// Key, value and `out` stay until the await is over, and no longer: the client touches nothing of the caller's once an
/// awaitable is destroyed, cancelled or timed out. A change may have happened or not then. The connection lives on.
/// \alloc none
///
/// Values of kv::kEagerBytes and more are put from memory of kv::Client::allocate (else kBadArgument). One that was
/// given up may still be read there: see kv::Client::settle.
///
/// A client belongs to the loop's thread, whose blocking and pipelined calls may come between. Gets, and operations on
/// cells, that the NIC carries out at once suspend nobody; every 64th lets the others go first. Operations that wait
/// end with kClosed when their client is destroyed.
namespace verbena::coroutine {

/// For operations of a store.
template <>
struct Refusal<kv::Outcome> {
  /// Nothing but the status.
  [[nodiscard]] static kv::Outcome of(Status status) noexcept { return {.status = status}; }
};

namespace detail {

/// What is asked of a store.
struct KvRequest {
  enum class What : std::uint8_t { kGet, kPut, kErase, kFetchAdd, kCompareSwap, kReadCell };
  What what;
  kv::Key key{};
  std::span<const std::byte> value{};
  std::span<std::byte> out{};
  std::uint64_t expected = 0;  ///< For the cell.
  std::uint64_t operand = 0;   ///< For the cell.
  kv::Cell cell{};
  kv::PutOptions options{};  ///< put
};

/// Waits for an operation of a client.
class KvWait : public Awaitable, public Wait {
 public:
  ~KvWait() override { leave(); }
  KvWait(const KvWait&) = delete;
  KvWait& operator=(const KvWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept;
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept;

 protected:
  KvWait(kv::Client& client, const KvRequest& request, const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] kv::Outcome outcome() noexcept;
  /// The cell's value.
  [[nodiscard]] std::uint64_t old() noexcept;

 private:
  struct Calling;
  [[nodiscard]] bool withdraw() noexcept override;
  [[nodiscard]] Calling& call() noexcept;

  kv::PollingClient* const client_;
  const std::optional<Deadline> deadline_;
  Status refused_ = Status::kOk;
  bool is_done_ = false;
  alignas(8) std::array<std::byte, 256> call_;
};

/// An operation on a key.
class [[nodiscard]] KeyWait final : public KvWait {
 public:
  KeyWait(kv::Client& client, const KvRequest& request, const std::optional<Deadline>& deadline) noexcept
      : KvWait(client, request, deadline) {}
  [[nodiscard]] kv::Outcome await_resume() noexcept { return outcome(); }
};

/// An operation on a cell.
class [[nodiscard]] CellWait final : public KvWait {
 public:
  CellWait(kv::Client& client, const KvRequest& request, const std::optional<Deadline>& deadline) noexcept
      : KvWait(client, request, deadline) {}
  [[nodiscard]] std::expected<std::uint64_t, Status> await_resume() noexcept {
    if (const Status status = outcome().status; status != Status::kOk) return std::unexpected(status);
    return old();
  }
};

}  // namespace detail

/// Copies the value to the front of `out`; see kv::Client::get.
[[nodiscard]] inline detail::KeyWait get(kv::Client& client, kv::Key key, std::span<std::byte> out,
                                         std::optional<Deadline> deadline = {}) noexcept {
  return {client, {.what = detail::KvRequest::What::kGet, .key = key, .out = out}, deadline};
}
/// Stores a value; see kv::Client::put.
[[nodiscard]] inline detail::KeyWait put(kv::Client& client, kv::Key key, std::span<const std::byte> value,
                                         std::optional<Deadline> deadline = {}) noexcept {
  return {client, {.what = detail::KvRequest::What::kPut, .key = key, .value = value}, deadline};
}
/// The same, as `options` say.
[[nodiscard]] inline detail::KeyWait put(kv::Client& client, kv::Key key, std::span<const std::byte> value,
                                         const kv::PutOptions& options,
                                         std::optional<Deadline> deadline = {}) noexcept {
  return {client, {.what = detail::KvRequest::What::kPut, .key = key, .value = value, .options = options}, deadline};
}
/// Stores the value if the key's version is `expected`; see kv::Client::cas.
[[nodiscard]] inline detail::KeyWait cas(kv::Client& client, kv::Key key, std::uint64_t expected,
                                         std::span<const std::byte> value,
                                         std::optional<Deadline> deadline = {}) noexcept {
  return put(client, key, value, {.expected = expected}, deadline);
}
/// Erases the key; see kv::Client::erase.
[[nodiscard]] inline detail::KeyWait erase(kv::Client& client, kv::Key key,
                                           std::optional<Deadline> deadline = {}) noexcept {
  return {client, {.what = detail::KvRequest::What::kErase, .key = key}, deadline};
}

/// Adds to a cell: the value before; see kv::Client::fetch_add.
[[nodiscard]] inline detail::CellWait fetch_add(kv::Client& client, const kv::Cell& cell, std::uint64_t delta,
                                                std::optional<Deadline> deadline = {}) noexcept {
  return {client, {.what = detail::KvRequest::What::kFetchAdd, .operand = delta, .cell = cell}, deadline};
}
/// Replaces `expected` with `desired`: the value before, which is `expected` if it was swapped.
[[nodiscard]] inline detail::CellWait compare_swap(kv::Client& client, const kv::Cell& cell, std::uint64_t expected,
                                                   std::uint64_t desired,
                                                   std::optional<Deadline> deadline = {}) noexcept {
  return {client,
          {.what = detail::KvRequest::What::kCompareSwap, .expected = expected, .operand = desired, .cell = cell},
          deadline};
}
/// Reads a cell.
[[nodiscard]] inline detail::CellWait read(kv::Client& client, const kv::Cell& cell,
                                           std::optional<Deadline> deadline = {}) noexcept {
  return {client, {.what = detail::KvRequest::What::kReadCell, .cell = cell}, deadline};
}

}  // namespace verbena::coroutine

#pragma GCC visibility pop
