// What every target uses. A target is one function, LLVMFuzzerTestOneInput, over any bytes; it aborts (VERBENA_CHECK,
// or a sanitizer) where an invariant does not hold. Most targets have two kinds of input: bytes as they are, and fields
// in a frame whose magic number and checksum are made right, because no mutation finds those.
#pragma once

#include "base/check.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace verbena::fuzz {

using Bytes = std::span<const std::byte>;

[[nodiscard]] inline bool same_bytes(Bytes a, Bytes b) noexcept { return std::ranges::equal(a, b); }

/// Takes values from the front of the fuzzer's bytes; zeros and nothing when they are used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) noexcept : left_(std::as_bytes(std::span(data, size))) {}
  template <class T>
  [[nodiscard]] T take() noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const Bytes bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(static_cast<void*>(&value), bytes.data(), bytes.size());
    return value;
  }
  /// At most `count` bytes.
  [[nodiscard]] Bytes take_bytes(std::size_t count) noexcept {
    const Bytes taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  [[nodiscard]] Bytes rest() noexcept { return take_bytes(left_.size()); }
  [[nodiscard]] bool empty() const noexcept { return left_.empty(); }

 private:
  Bytes left_;
};

/// A copy in a heap block of exactly its size: a sanitizer sees any access beside it.
class Tight {
 public:
  explicit Tight(Bytes bytes) : Tight(bytes.size()) {
    if (!bytes.empty()) std::memcpy(data_.get(), bytes.data(), bytes.size());
  }
  explicit Tight(std::size_t size) : data_(new std::byte[size]()), size_(size) {}
  [[nodiscard]] std::span<std::byte> writable() noexcept { return {data_.get(), size_}; }
  [[nodiscard]] Bytes bytes() const noexcept { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_;
};

/// Whether `inner` lies inside `outer`; an empty one lies anywhere.
[[nodiscard]] inline bool is_inside(Bytes inner, Bytes outer) noexcept {
  const auto at = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p); };
  if (inner.empty()) return true;
  return at(inner.data()) >= at(outer.data()) && inner.size() <= outer.size() &&
         at(inner.data()) - at(outer.data()) <= outer.size() - inner.size();
}

}  // namespace verbena::fuzz
