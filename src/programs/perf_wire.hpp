// Messages between the two ends of verbena-perf, sent on the measured connections.
//
// The client's first message on each connection is a Request; the server answers with a Reply. Both are checked before
// they are used. The first byte of every message, and the immediate of every write, says what it asks for.
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

static_assert(std::endian::native == std::endian::little, "structs are copied without conversion");

inline constexpr std::uint16_t kMagic = 0x5056;  // "VP"
inline constexpr std::uint8_t kVersion = 3;
/// Connections of a server at a time. A completion queue of Soft-RoCE has room for few more.
inline constexpr std::uint32_t kMaxConnections = 128;

enum class Ask : std::uint8_t {
  kNothing,  ///< Nothing: the message is one of many.
  kAnswer,   ///< Send the same number of bytes back.
  kRun,      ///< A Request, or the Reply to it.
  kBye       ///< The run is complete; the answer is a Reply.
};

/// Which thread answers at the server.
enum class Serving : std::uint8_t {
  kHandler,  ///< A handler, in the listener's thread.
  kThread    ///< One thread per connection, which calls Connection::receive.
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
  std::uint32_t connections = 0;  ///< On a run's first connection: its number of connections; on the others 0.
  std::uint32_t bytes = 0;        ///< Bytes of each operation, from 1 to the test's limit.
  friend bool operator==(const Request&, const Request&) = default;
};
static_assert(sizeof(Request) == 16);

/// Server to client.
struct Reply {
  Ask ask = Ask::kRun;
  std::uint8_t version = kVersion;
  std::uint16_t magic = kMagic;
  Serving serving = Serving::kHandler;
  std::array<char, 323> refusal{};  ///< Why the server refuses the run, null-terminated; empty: it accepts.
  std::uint64_t physical = 0;       ///< To a request: the physical address of `bytes` bytes, for tests that use it.
  std::uint64_t cpu_ppm = 0;        ///< To a bye: processor time of the server's process in the run, in millionths of a
                                    ///< core.
  std::uint64_t others = 0;         ///< To a bye: runs that it served at the same time.
};
static_assert(sizeof(Reply) == 352);

/// Errors: kProtocol for anything that is not a Request of this version with every field in its range.
[[nodiscard]] std::expected<Request, Status> decode_request(std::span<const std::byte> message) noexcept;
/// The same for a Reply to a request for `bytes` bytes.
[[nodiscard]] std::expected<Reply, Status> decode_reply(std::span<const std::byte> message,
                                                        std::uint32_t bytes) noexcept;

template <class Message>
[[nodiscard]] std::span<const std::byte> bytes_of(const Message& message) noexcept {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace verbena::programs::perf_wire
