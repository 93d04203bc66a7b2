// The calls of a session.
#pragma once

#include "channel/options.hpp"
#include "engine/call.hpp"
#include "session/wire.hpp"

#include <verbena/rdma_types.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace verbena::session {

using channel::Change;
using channel::LocalSpan;
using channel::RemoteSpan;
using engine::Call;
using engine::CallQueue;

/// A place in the peer's memory: in one of its windows, or in its physical memory.
enum class Space : std::uint8_t { kKey, kPhysical };
struct Place {
  Space space = Space::kKey;
  RemoteSpan span;
};

/// A READ, WRITE or atomic.
struct Transfer {
  using Kind = rdma::Completion::Operation;
  Kind kind = Kind::kWrite;
  LocalSpan local;
  Place place;
  Change change;             ///< The change of an atomic.
  std::uint64_t cookie = 0;  ///< For one that the user starts.
  /// Whether the NIC uses this side's memory until the connection completes it.
  [[nodiscard]] bool is_registered() const noexcept { return kind != Kind::kAtomic && !local.is_bounced; }
};
struct TransferCall : Call, Transfer {
  using Space = session::Space;
  TransferCall() noexcept = default;
  explicit TransferCall(const Transfer& transfer) noexcept : Transfer(transfer) {}

  bool is_started = false;    ///< The user started it and has not taken its completion.
  std::uint64_t started = 0;  ///< Bytes handed to the connection.
  std::uint32_t parts = 0;    ///< Operations of the connection in flight.
  std::uint32_t slot = 0;     ///< Its slot in Transfers while there are some.
  std::uint64_t old = 0;      ///< The value before an atomic.
  std::uint64_t number = 0;   ///< Its place in the order of all transfers.
  TransferCall* next = nullptr;
};

/// An outgoing message.
struct SendCall : Call {
  wire::Kind kind = wire::Kind::kData;
  std::optional<std::uint32_t> immediate;
  const std::byte* from = nullptr;
  std::uint64_t length = 0;             ///< With kWritten: bytes written.
  std::uint64_t offset = 0;             ///< With kWritten: offset in the window.
  const TransferCall* after = nullptr;  ///< It is sent only if that transfer does not fail.
  std::uint64_t behind = 0;             ///< It leaves after the transfers up to this number.
  std::uint64_t sent = 0;               ///< Bytes sent.
  bool is_sent = false;                 ///< All bytes left; its receipt is awaited, if any.
  std::uint64_t receipt = 0;            ///< The number of its receipt, while awaited.
  SendCall* next = nullptr;
};

/// Takes the next message.
struct ReceiveCall : Call {
  std::byte* to = nullptr;
  std::size_t length = 0;
  std::size_t filled = 0;
  std::size_t needed = 0;  ///< With kBufferTooSmall: length of the message.
  rdma::Message message;
  std::atomic<bool> is_dropped{false};  ///< Set by any thread: it is to take nothing more.
  ReceiveCall* next = nullptr;
};

/// Asks for a window of the peer, by its name or by its key.
struct AskCall : Call {
  std::string_view name;
  std::uint32_t rkey = 0;
  std::uint64_t number = 0;  ///< 0: not asked yet.
  bool is_absent = false;    ///< The peer has answered that there is none yet.
  rdma::Window found;
  AskCall* next = nullptr;
};

/// Takes the next completion of a started operation.
struct TakeCall : Call {
  rdma::Completion completion;
  TakeCall* next = nullptr;
};

}  // namespace verbena::session
