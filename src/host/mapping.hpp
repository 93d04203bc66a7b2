// The owner of mapped memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace verbena::host {

/// Move-only owner of a mapping; empty after a move.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    Mapping old(std::move(other));
    std::swap(data_, old.data_);
    std::swap(size_, old.size_);
    return *this;
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Maps `fd`, shared, for `access` (PROT_READ, PROT_WRITE) at a multiple of `alignment`, because a kernel maps
/// transparent pages only there, and an emulator of processes maps hugepages nowhere else; at any address if another
/// thread takes that one first. Null, and errno, if neither can be mapped.
[[nodiscard]] std::byte* map_aligned(int fd, std::size_t size, std::size_t alignment, int access) noexcept;

}  // namespace verbena::host
