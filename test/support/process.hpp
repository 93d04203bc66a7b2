// What this process holds of the kernel, for leak checks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

namespace verbena::test {

/// Open file descriptors, the one that counts included.
[[nodiscard]] inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

/// Mappings of memfds whose name holds `text`: those of arenas and of the soft NIC. Mappings of the allocator and of
/// sanitizers come and go by themselves and are left out.
[[nodiscard]] inline std::size_t memfd_mappings(const std::string& text = "verbena") {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("/memfd:") != std::string::npos && line.find(text) != std::string::npos;
  return count;
}

}  // namespace verbena::test
