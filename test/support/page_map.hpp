// A page map of the test's own: which physical frame lies behind which page.
#pragma once

#include "host/physical.hpp"

#include <result.hpp>

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace verbena::test {

/// A sparse file with an entry of 8 bytes for each page, like the kernel's.
class FakePageMap {
 public:
  static constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;

  explicit FakePageMap(std::size_t page_bytes = 4096) : fd_(memfd_create("page map", MFD_CLOEXEC)), page_(page_bytes) {
    EXPECT_GE(fd_.get(), 0);
  }
  /// The entry of the page that `address` lies in.
  void put_entry(std::uint64_t address, std::uint64_t entry) {
    const auto at = static_cast<off_t>(address / page_ * sizeof entry);
    EXPECT_EQ(pwrite(fd_.get(), &entry, sizeof entry, at), static_cast<ssize_t>(sizeof entry));
  }
  void put(std::uint64_t address, std::uint64_t frame) { put_entry(address, kPresent | frame); }
  /// The frames of the pages from `memory` on.
  void put_all(const std::byte* memory, std::span<const std::uint64_t> frames) {
    auto at = reinterpret_cast<std::uintptr_t>(memory);
    for (const std::uint64_t frame : frames) {
      put(at, frame);
      at += page_;
    }
  }
  [[nodiscard]] host::PageMap open() const {
    const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
    auto opened = host::PageMap::open({.path = path.c_str(), .page_bytes = page_});
    EXPECT_OK(opened);
    return std::move(*opened);
  }

 private:
  Fd fd_;
  std::size_t page_;
};

}  // namespace verbena::test
