// Versions and checksums of items, over a connection.
#include "kv/item.hpp"
#include "kv/plan.hpp"
#include "model.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace verbena::kv {
namespace {

using namespace testing_support;

std::string get(Client& client, std::string_view key) {
  std::string out(std::size_t{2} << 20, '\0');
  const Outcome outcome = client.get(key_of(key), std::as_writable_bytes(std::span(out)));
  return outcome.status == Status::kOk ? out.substr(0, outcome.length) : to_string(outcome.status);
}

TEST(KvVersions, EndAtTheirLimit) {
  auto server = start_server(small_server(), {.first_version = kMaxVersion - 1});
  ASSERT_TRUE(server) << server.error().text();
  const auto client = connect(client_options(**server));
  ASSERT_TRUE(client);
  const std::string large(100'000, 'l');
  EXPECT_EQ(client->put(key_of("a"), bytes_of("small")).version, kMaxVersion - 1);
  EXPECT_EQ(client->put(key_of("b"), bytes_of(large)).version, kMaxVersion);
  for (const std::string& value : {std::string("small"), large}) {
    EXPECT_EQ(client->put(key_of("a"), bytes_of(value)).status, Status::kLimit);
    EXPECT_EQ(client->put(key_of("new"), bytes_of(value)).status, Status::kLimit);
    EXPECT_EQ(client->cas(key_of("b"), kMaxVersion, bytes_of(value)).status, Status::kLimit);
  }
  EXPECT_EQ(get(*client, "a"), "small");
  EXPECT_EQ(get(*client, "b"), large);
  EXPECT_EQ(get(*client, "new"), "not found");
  EXPECT_EQ((*server)->statistics().last_version, kMaxVersion);
  EXPECT_EQ(client->erase(key_of("b")).status, Status::kOk);
  EXPECT_EQ(client->connection_error().status(), Status::kOk);
}

/// Overwrites one byte of each place where the server's memory has `text`. \return how many there were
unsigned damage(std::string_view text) {
  std::ifstream maps("/proc/self/maps");
  unsigned found = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (line.find("verbena-items") == std::string::npos || line.find(" rw") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    const std::span memory(reinterpret_cast<char*>(begin), end - begin);
    for (std::string_view left(memory.data(), memory.size());;) {
      const std::size_t at = left.find(text);
      if (at == std::string_view::npos) break;
      const_cast<char&>(left[at + text.size() / 2]) ^= 1;
      left.remove_prefix(at + 1);
      ++found;
    }
  }
  return found;
}

TEST(KvChecksums, LargeValuesAreCheckedWhenAsked) {
  for (const bool is_asked : {false, true}) {
    ServerOptions options = small_server();
    options.checksum_large_values = is_asked;
    const auto server = start(options);
    ASSERT_TRUE(server);
    auto client = connect(client_options(*server));
    ASSERT_TRUE(client);
    for (const std::size_t length : {4096u, 5000u, 300'000u, 1u << 20}) {
      std::string value(length, 'v');
      for (std::size_t i = 0; i < length; ++i) value[i] = static_cast<char>(i * 7 + i / 256);
      ASSERT_EQ(client->put(key_of("k"), bytes_of(value)).status, Status::kOk);
      EXPECT_TRUE(get(*client, "k") == value) << length;
    }
    const std::string value = "a value that occurs but once: " + std::string(5000, '.') + " so says its end";
    ASSERT_EQ(client->put(key_of("damaged"), bytes_of(value)).status, Status::kOk);
    ASSERT_EQ(damage(value), 1u);
    if (!is_asked) {
      EXPECT_FALSE(get(*client, "damaged") == value) << "as it came";
      continue;
    }
    EXPECT_EQ(get(*client, "damaged"), "protocol error");
    EXPECT_NE(std::string(client->connection_error().text()).find("checksum"), std::string::npos);
    client = connect(client_options(*server));
    ASSERT_TRUE(client);
    EXPECT_EQ(get(*client, "k").size(), std::size_t{1} << 20) << "others are as they were";
  }
}

}  // namespace
}  // namespace verbena::kv
