// What the two ends of verbena-perf tell each other, in messages on the connections that are measured.
//
// The client's first message on each connection is a Request, which the server answers by a Reply; both are checked
// before anything of them is used. The first byte of every message, and the immediate of every write, says what is
// asked for.
#pragma once

#include "programs/perf_tests.hpp"

#include <verbena/status.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>

namespace verbena::programs::perf_wire {

static_assert(std::endian::native == std::endian::little, "structs are copied as they lie in memory");

inline constexpr std::uint16_t kMagic = 0x5056;  // "VP"
inline constexpr std::uint8_t kVersion = 3;
/// Connections of a server at a time. On Soft-RoCE a completion queue has no room for many more.
inline constexpr std::uint32_t kMaxConnections = 128;

enum class Ask : std::uint8_t {
  kNothing,  ///< The message is one of many.
  kAnswer,   ///< Send as many bytes back.
  kRun,      ///< A Request, or the Reply to it.
  kBye       ///< The run is whole; the answer is a Reply.
};

/// Who answers at the server.
enum class Serving : std::uint8_t {
  kHandler,  ///< A handler, in the listener's thread.
  kThread    ///< A thread for each connection, which calls Connection::receive.
};
[[nodiscard]] constexpr const char* to_string(Serving serving) noexcept {
  return serving == Serving::kThread ? "thread" : "handler";
}

/// Client to server, on each connection.
struct Request {
  Ask ask = Ask::kRun;
  std::uint8_t version = kVersion;
  std::uint16_t magic = kMagic;
  PerfTest test = PerfTest::kRead;
  std::array<std::uint8_t, 3> reserved{};
  std::uint32_t connections = 0;  ///< On the first connection of a run, how many it has; on the others 0.
  std::uint32_t bytes = 0;        ///< Bytes of each operation; 1 to the test's most.
  friend bool operator==(const Request&, const Request&) = default;
};
static_assert(sizeof(Request) == 16);

/// Server to client.
struct Reply {
  Ask ask = Ask::kRun;
  std::uint8_t version = kVersion;
  std::uint16_t magic = kMagic;
  Serving serving = Serving::kHandler;
  std::array<char, 323> refusal{};  ///< Why there will be no run, null-terminated; empty: there will.
  std::uint64_t physical = 0;       ///< To a request: the physical address of `bytes` bytes, of tests that go by it.
  std::uint64_t cpu_ppm = 0;        ///< To a bye: millionths of a core that the server's process used in the run.
  std::uint64_t others = 0;         ///< To a bye: runs that it served at the same time.
};
static_assert(sizeof(Reply) == 352);

/// kProtocol for anything that is not a Request of this version with every field in its range.
[[nodiscard]] std::expected<Request, Status> decode_request(std::span<const std::byte> message) noexcept;
/// The same for a Reply to one of `bytes` bytes.
[[nodiscard]] std::expected<Reply, Status> decode_reply(std::span<const std::byte> message,
                                                        std::uint32_t bytes) noexcept;

template <class Message>
[[nodiscard]] std::span<const std::byte> bytes_of(const Message& message) noexcept {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace verbena::programs::perf_wire
