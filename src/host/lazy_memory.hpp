// Memory that costs what is used of it.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <utility>

namespace verbena::host {

/// Move-only owner of zeroed memory of this process alone, of which pages are there once they are touched: what is
/// large for few.
class LazyMemory {
 public:
  LazyMemory() noexcept = default;
  LazyMemory(LazyMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  LazyMemory& operator=(LazyMemory&& other) noexcept;
  ~LazyMemory();
  /// `what` is it for, as in "making a key table". Errors: kNoMemory, kSystem.
  [[nodiscard]] static Result<LazyMemory> create(std::size_t size, const char* what);
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace verbena::host
