// A PUT or CAS of a large value that has begun: what the server keeps of the request until the bytes are its own.
#pragma once

#include "kv/wire.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena::kv {

struct OpenPut {
  std::uint32_t id = 0;  ///< The request's.
  std::uint16_t key_length = 0;
  std::uint64_t length = 0;  ///< The value's.
  std::uint64_t expected = 0;
  std::uint64_t ttl_ns = 0;
  std::uint64_t began_ticks = 0;
  std::array<std::byte, kMaxKeyBytes> key_bytes;

  void take(const wire::Request& request, std::uint64_t now) noexcept {
    id = request.head.id;
    key_length = request.head.key_length;
    length = request.large.length;
    expected = request.expected;
    ttl_ns = request.ttl_ns;
    began_ticks = now;
    std::memcpy(key_bytes.data(), request.key.data(), request.key.size());
  }
  [[nodiscard]] Key key() const noexcept { return {key_bytes.data(), key_length}; }
};

}  // namespace verbena::kv
