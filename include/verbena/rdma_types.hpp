/// \file
/// Types of the API for connections: messages, windows of memory, rights and completions. Plain values.
#pragma once

#include <verbena/status.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#pragma GCC visibility push(default)

namespace verbena::rdma {

/// Where arriving messages go.
enum class Receive : std::uint8_t {
  kQueue,    ///< They wait for Connection::receive.
  kHandler,  ///< They go to Handler::on_message.
  kDiscard,  ///< They are counted and dropped; for listeners only.
};

/// Where completions go.
enum class Complete : std::uint8_t {
  kQueue,    ///< They wait for Connection::complete.
  kHandler,  ///< They go to Handler::on_complete.
};

/// A message that arrived.
struct Message {
  /// Kinds of messages.
  enum class Kind : std::uint8_t {
    kSent,     ///< By `send`.
    kWritten,  ///< The peer wrote into this side's window by `write_with_immediate`.
  };
  Kind kind = Kind::kSent;                   ///< Sent, or written.
  std::optional<std::uint32_t> immediate{};  ///< The number that the sender gave with it.
  /// kSent: the bytes, valid until the handler returns; in `receive` the caller's buffer. kWritten: the place in the
  /// window.
  std::span<std::byte> data{};
};

/// Rights of the peer to memory. This side may always read and write it.
enum class Access : std::uint8_t { kLocal = 0, kRead = 1, kWrite = 2, kAtomic = 4, kAll = 7 };
/// Both rights.
[[nodiscard]] constexpr Access operator|(Access a, Access b) noexcept {
  return static_cast<Access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
/// Whether `rights` has all of `wanted`.
[[nodiscard]] constexpr bool includes(Access rights, Access wanted) noexcept {
  return (static_cast<unsigned>(rights) & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

/// A length: everything after the offset.
inline constexpr std::size_t kRest = std::numeric_limits<std::size_t>::max();

/// A part of the peer's memory.
struct Remote {
  std::uint64_t address = 0;  ///< Address of the first byte, in the peer's process.
  std::uint64_t length = 0;   ///< Bytes.
  std::uint32_t rkey = 0;     ///< Key of its window.
  std::uint16_t peer = 0;     ///< For the library: whose memory it is; 0: not known.
};

/// Registered memory, as a peer of its owner reaches it. Plain numbers: you may send them in a message.
struct Window {
  std::uint64_t address = 0;       ///< Address of the first byte, in the owner's process.
  std::uint64_t length = 0;        ///< Bytes.
  std::uint64_t memory_id = 0;     ///< For the library: the software NIC's number of the memory.
  std::uint32_t rkey = 0;          ///< Key for calls of the peer.
  Access access = Access::kLocal;  ///< Rights of the peer.
  /// For the library: whose memory it is, in a window that a connection has found, which another peer's connection
  /// refuses then; 0: not known.
  std::uint16_t peer = 0;

  /// `bytes` bytes from `offset` on. If they are not inside: an empty part, which every call refuses.
  [[nodiscard]] constexpr Remote at(std::uint64_t offset = 0, std::uint64_t bytes = kRest) const noexcept {
    if (offset > length) return {};
    if (bytes == kRest) bytes = length - offset;
    if (bytes > length - offset) return {};
    return {.address = address + offset, .length = bytes, .rkey = rkey, .peer = peer};
  }
};
static_assert(sizeof(Window) == 32);

/// Memory of the peer by its physical address. The peer must have exported it.
struct Physical {
  std::uint64_t address = 0;  ///< Physical address of the first byte.
};

/// The end of an operation that was started without waiting.
struct Completion {
  /// Kinds of operations.
  enum class Operation : std::uint8_t { kWrite, kRead, kAtomic };
  std::uint64_t cookie = 0;                 ///< The cookie that you started it with.
  Operation operation = Operation::kWrite;  ///< The kind of operation.
  Status status = Status::kOk;              ///< kOk or an error. You may touch the operation's memory again.
  std::uint64_t old = 0;                    ///< kAtomic: the value before.
};

}  // namespace verbena::rdma

#pragma GCC visibility pop
