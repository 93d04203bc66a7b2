// Formats between processes of a mesh: blobs, this layer's part of the handshake, and the frames of messages.
#pragma once

#include <verbena/error.hpp>
#include <verbena/mesh.hpp>
#include <verbena/rdma_types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace verbena::mesh::wire {

inline constexpr std::uint32_t kMagic = 0x4853'4d56;  // "VMSH"
inline constexpr std::uint16_t kVersion = 1;

/// Where a process listens.
struct Card {
  std::uint32_t id = 0;
  std::uint16_t port = 0;
  std::uint64_t incarnation = 0;  ///< 0: the carrier does not know it.
  std::string address;
};
/// Longest address in a card.
inline constexpr std::size_t kMaxAddressBytes = 200;
/// Errors: kTooLong (the address does not fit).
[[nodiscard]] Result<Blob> encode(const Card& card);
/// Errors: kProtocol for anything that `encode` did not make.
[[nodiscard]] Result<Card> decode(const Blob& blob);

/// Part of each connection's handshake, in both directions.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t thread = 0;
  std::uint32_t id = 0;
  std::uint32_t processes = 0;
  std::uint32_t threads = 0;
  std::uint32_t message_bytes = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t job = 0;  ///< Hash of the job's name.
};
static_assert(sizeof(Hello) == 40);
/// Errors: kProtocol if the bytes are not a hello of a mesh of this version.
[[nodiscard]] Result<Hello> decode_hello(std::span<const std::byte> data);
/// Errors: kRejected, naming the first limit in which the processes differ.
[[nodiscard]] Result<void> check_limits(const Hello& mine, const Hello& theirs);

/// Longest name of a window.
inline constexpr std::size_t kMaxNameBytes = 64;

enum class Kind : std::uint8_t {
  kMessage = 1,
  kReady = 2,    ///< The sender has found all others.
  kWindow = 3,   ///< A WindowFrame.
  kGather = 4,   ///< A GatherFrame.
  kWritten = 5,  ///< A WrittenFrame, after its WRITE.
  kGoodbye = 6,
};
/// Starts each message.
struct Head {
  Kind kind = Kind::kMessage;
  std::uint8_t has_immediate = 0;
  std::uint16_t reserved = 0;
  std::uint32_t immediate = 0;
};
static_assert(sizeof(Head) == 8);
struct WindowFrame {
  Head head{.kind = Kind::kWindow};
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint64_t memory_id = 0;
  std::uint32_t rkey = 0;
  std::uint32_t access = 0;  ///< rdma::Access.
  std::uint32_t name_bytes = 0;
  std::uint32_t reserved = 0;
  std::array<char, kMaxNameBytes> name{};
};
static_assert(sizeof(WindowFrame) == 112);
struct GatherFrame {
  Head head{.kind = Kind::kGather};
  std::uint32_t number = 0;  ///< Number of the call, counted by each process.
  std::uint32_t bytes = 0;
  std::array<std::byte, kMaxGatherBytes> value{};
};
static_assert(sizeof(GatherFrame) == 80);
struct WrittenFrame {
  Head head{.kind = Kind::kWritten};
  std::uint64_t address = 0;
  std::uint64_t length = 0;
};
static_assert(sizeof(WrittenFrame) == 24);
/// The longest frame that the mesh itself sends: no limit on messages may be below it.
inline constexpr std::size_t kMaxFrameBytes = sizeof(WindowFrame);

[[nodiscard]] WindowFrame frame_of(std::string_view name, const rdma::Window& window) noexcept;
/// Checks a peer's claim for anything that could do harm here. Errors: kProtocol.
[[nodiscard]] Result<rdma::Window> window_of(const WindowFrame& frame);
[[nodiscard]] inline std::string_view name_of(const WindowFrame& frame) noexcept {
  return {frame.name.data(), frame.name_bytes};
}

/// "2, 5, 6 and 3 more".
[[nodiscard]] std::string list_of(std::span<const unsigned> ids);

template <class Frame>
[[nodiscard]] std::span<const std::byte> bytes_of(const Frame& frame) noexcept {
  return std::as_bytes(std::span(&frame, 1));
}
/// Copies a frame that is all of `body`. False: the length differs.
template <class Frame>
[[nodiscard]] bool take_all(std::span<const std::byte> body, Frame& frame) noexcept {
  if (body.size() != sizeof frame) return false;
  std::memcpy(static_cast<void*>(&frame), body.data(), sizeof frame);
  return true;
}

}  // namespace verbena::mesh::wire
