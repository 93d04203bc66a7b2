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

/// A sum of /proc/self/smaps_rollup, in bytes.
[[nodiscard]] inline std::size_t memory_sum(const std::string& name) {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    if (line.starts_with(name + ':')) return std::stoul(line.substr(name.size() + 1)) << 10;
  }
  return 0;
}

/// Bytes of this process's mappings that are in memory, those that it shares included.
[[nodiscard]] inline std::size_t resident_bytes() { return memory_sum("Rss"); }

/// Bytes of its own memory, and its part of memory that it shares with other processes. Files are left out.
[[nodiscard]] inline std::size_t proportional_bytes() { return memory_sum("Pss_Anon") + memory_sum("Pss_Shmem"); }

/// Bytes of addresses that are mapped, but for the heap and the stacks of the main thread.
[[nodiscard]] inline std::size_t mapped_bytes() {
  std::ifstream maps("/proc/self/maps");
  std::size_t sum = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with("]")) continue;
    const std::size_t dash = line.find('-');
    sum += std::stoul(line.substr(dash + 1), nullptr, 16) - std::stoul(line, nullptr, 16);
  }
  return sum;
}

}  // namespace verbena::test
