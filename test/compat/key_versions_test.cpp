// Versions that each key counts for itself, among clients that change the same key at a time.
#include <transport.hpp>

#include <verbena/compat/key_versions.h>
#include <verbena/kv.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace verbena::test {
namespace {

using ClientOwner = std::unique_ptr<kv_client_t, decltype(&kv_client_destroy)>;

class KeyVersions : public testing::Test {
 protected:
  KeyVersions() : transport_(transport_under_test()) {
    kv_server_options_t options;
    EXPECT_EQ(kv_server_options_init(&options), KV_OK);
    options.device = transport_.device.c_str();
    options.mode = mode();
    options.port = 0;
    options.memory_bytes = std::size_t{64} << 20;
    options.pin_workers = 0;
    server_.reset(kv_server_create(&options));
    EXPECT_EQ(kv_server_start(server_.get()), KV_OK) << kv_error_detail();
  }
  [[nodiscard]] ClientOwner connect() const {
    kv_client_options_t options;
    EXPECT_EQ(kv_client_options_init(&options), KV_OK);
    options.device = transport_.device.c_str();
    options.timeout_ms = options.connect_timeout_ms = 30'000;
    ClientOwner client(kv_client_create(mode()), &kv_client_destroy);
    EXPECT_EQ(kv_client_set_options(client.get(), &options), KV_OK);
    EXPECT_EQ(
        kv_client_connect(client.get(), is_soft_under_test() ? "127.0.0.1" : nullptr, kv_server_port(server_.get())),
        KV_OK)
        << kv_error_detail();
    return client;
  }
  [[nodiscard]] conn_mode_t mode() const {
    return transport_.bootstrap == Bootstrap::kCm ? CONN_MODE_CM : CONN_MODE_SOCKET;
  }

  Transport transport_;
  std::unique_ptr<kv_server_t, decltype(&kv_server_destroy)> server_{nullptr, &kv_server_destroy};
};

constexpr unsigned kThreads = 3;
constexpr std::uint64_t kPuts = 300;

// No change is lost, and no version is given twice.
TEST_F(KeyVersions, ConcurrentPutsGetAllVersions) {
  std::array<std::vector<std::uint64_t>, kThreads> got;
  std::vector<std::thread> threads;
  for (auto& mine : got) {
    threads.emplace_back([this, &mine] {
      const ClientOwner client = connect();
      for (std::uint64_t i = 0; i < kPuts; ++i) {
        std::uint64_t version = 0;
        const std::string value(i * 40, 'v');
        ASSERT_EQ(kv_client_put_counted(client.get(), "key", 3, value.data(), value.size(), &version), KV_OK)
            << kv_error_detail();
        mine.push_back(version);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::uint64_t> all;
  for (const auto& mine : got) {
    EXPECT_TRUE(std::ranges::is_sorted(mine));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::ranges::sort(all);
  ASSERT_EQ(all.size(), kThreads * kPuts);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i + 1);
}

// A number in a value, raised by cas alone: what many clients add is all there in the end.
TEST_F(KeyVersions, CasLetsOneClientWin) {
  const ClientOwner first = connect();
  std::uint64_t number = 0;
  ASSERT_EQ(kv_client_put_counted(first.get(), "sum", 3, &number, sizeof number, nullptr), KV_OK);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([this] {
      const ClientOwner client = connect();
      for (std::uint64_t won = 0; won < kPuts;) {
        std::uint64_t mine = 0, version = 0;
        std::size_t length = sizeof mine;
        ASSERT_EQ(kv_client_get_counted(client.get(), "sum", 3, &mine, &length, &version), KV_OK);
        ++mine;
        const int code = kv_client_cas_counted(client.get(), "sum", 3, version, &mine, sizeof mine, &version);
        ASSERT_TRUE(code == KV_OK || code == KV_ERR_VERSION_MISMATCH) << kv_error_detail();
        if (code == KV_OK) ++won;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t version = 0;
  std::size_t length = sizeof number;
  ASSERT_EQ(kv_client_get_counted(first.get(), "sum", 3, &number, &length, &version), KV_OK);
  EXPECT_EQ(number, kThreads * kPuts);
  EXPECT_EQ(version, kThreads * kPuts + 1);
}

// Put and delete of one key at a time: every put counts on from what it found, or from nothing.
TEST_F(KeyVersions, ADeletedKeyBeginsAgain) {
  std::thread other([this] {
    const ClientOwner client = connect();
    for (std::uint64_t i = 0; i < kPuts; ++i) {
      const int code = kv_client_delete(client.get(), "key", 3);
      ASSERT_TRUE(code == KV_OK || code == KV_ERR_NOT_FOUND) << kv_error_detail();
    }
  });
  const ClientOwner client = connect();
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < kPuts; ++i) {
    std::uint64_t version = 0;
    ASSERT_EQ(kv_client_put_counted(client.get(), "key", 3, &i, sizeof i, &version), KV_OK) << kv_error_detail();
    ASSERT_TRUE(version == last + 1 || version == 1) << version << " after " << last;
    last = version;
  }
  other.join();
}

// A value that ends before its count would, or is all of one, is not taken for a counted one.
TEST_F(KeyVersions, PlainValuesAreRefused) {
  const ClientOwner client = connect();
  for (const std::size_t bytes : {0, 7, 8, 100, 5000}) {
    const std::string value(bytes, 'x');
    ASSERT_EQ(kv_client_put(client.get(), "plain", 5, value.data(), value.size()), KV_OK);
    std::array<char, 8192> buffer;
    std::size_t length = buffer.size();
    EXPECT_EQ(kv_client_get_counted(client.get(), "plain", 5, buffer.data(), &length, nullptr), KV_ERR_WRONG_KIND);
    EXPECT_EQ(length, buffer.size());
    EXPECT_EQ(kv_client_put_counted(client.get(), "plain", 5, "x", 1, nullptr), KV_ERR_WRONG_KIND);
    EXPECT_EQ(kv_client_cas_counted(client.get(), "plain", 5, 1, "x", 1, nullptr), KV_ERR_WRONG_KIND);
    length = buffer.size();
    ASSERT_EQ(kv_client_get(client.get(), "plain", 5, buffer.data(), &length), KV_OK);
    EXPECT_EQ(std::string(buffer.data(), length), value);
  }
}

}  // namespace
}  // namespace verbena::test
