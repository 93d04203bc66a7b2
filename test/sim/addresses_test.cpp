// Addresses of a run are the same in every process, and none comes again within the run.
#include "addresses.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstddef>
#include <vector>

namespace verbena::sim {
namespace {

void* map(std::size_t size) {
  return ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/// Maps and unmaps memory of several sizes, each when the one before is gone.
std::vector<void*> addresses_of_a_run() {
  restart_addresses();
  std::vector<void*> found;
  for (const std::size_t size : {std::size_t{4096}, std::size_t{4096}, std::size_t{3} << 20, std::size_t{4096}}) {
    found.push_back(map(size));
    EXPECT_EQ(::munmap(found.back(), size), 0);
  }
  return found;
}

TEST(Addresses, AreThoseOfTheRunAlone) {
  const std::vector<void*> first = addresses_of_a_run();
  for (std::size_t i = 1; i < first.size(); ++i) EXPECT_GT(first[i], first[i - 1]) << "an address comes again";
  const std::vector<std::byte> heap(std::size_t{1} << 24);  // As a run before may leave the process.
  EXPECT_EQ(addresses_of_a_run(), first);
}

TEST(AddressesDeathTest, MemoryThatARunLeftBehindIsTold) {
  EXPECT_DEATH(
      {
        restart_addresses();
        (void)map(4096);
        restart_addresses();
        (void)map(4096);
      },
      "EEXIST");
}

}  // namespace
}  // namespace verbena::sim
