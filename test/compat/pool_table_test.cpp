// The pool and the table of rdma_kv's headers: by themselves, and the table through a peer's READs.
#include "fixture.hpp"

#include <verbena/compat/hash_table.h>
#include <verbena/compat/memory_pool.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::test {
namespace {

constexpr std::size_t kPoolBytes = std::size_t{64} << 20;

using PoolOwner = std::unique_ptr<memory_pool_t, decltype(&memory_pool_destroy)>;
using TableOwner = std::unique_ptr<hash_table_t, decltype(&hash_table_destroy)>;
PoolOwner make_pool(std::size_t bytes = kPoolBytes) { return {memory_pool_create(bytes, true), &memory_pool_destroy}; }
TableOwner make_table(const PoolOwner& pool, std::size_t keys = 1024) {
  return {hash_table_create(keys, pool.get()), &hash_table_destroy};
}

TEST(CompatPool, IsOneRangeOnTheLargestPages) {
  for (const bool huge : {false, true}) {
    const PoolOwner pool(memory_pool_create(kPoolBytes, huge), &memory_pool_destroy);
    ASSERT_TRUE(pool) << kv_error_detail();
    EXPECT_EQ(memory_pool_get_size(pool.get()), kPoolBytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory_pool_get_base(pool.get())) % 4096, 0U);
    EXPECT_EQ(memory_pool_get_used(pool.get()), 0U);
    EXPECT_GE(memory_pool_page_size(pool.get()), 4096U);
  }
}

TEST(CompatPool, ItemsAreInsideAndApart) {
  const PoolOwner pool = make_pool();
  const auto* const base = static_cast<const std::byte*>(memory_pool_get_base(pool.get()));
  std::mt19937_64 random(1);
  std::map<std::byte*, std::size_t> items;
  for (int i = 0; i < 20'000; ++i) {
    if (items.size() < 500 || random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (random() % 16 == 0 ? 1 << 17 : 4096);
      auto* const item = static_cast<std::byte*>(memory_pool_alloc(pool.get(), bytes));
      ASSERT_NE(item, nullptr);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(item) % (bytes >= 4096 ? 4096 : 64), 0U);
      ASSERT_TRUE(item >= base && item + bytes <= base + kPoolBytes);
      const auto after = items.lower_bound(item);
      ASSERT_TRUE(after == items.end() || item + bytes <= after->first);
      ASSERT_TRUE(after == items.begin() || std::prev(after)->first + std::prev(after)->second <= item);
      items[item] = bytes;
    } else {
      const auto one = std::next(items.begin(), static_cast<std::ptrdiff_t>(random() % items.size()));
      ASSERT_EQ(memory_pool_free(pool.get(), one->first), KV_OK);
      ASSERT_EQ(memory_pool_free(pool.get(), one->first), KV_ERR_BAD_ARGUMENT);
      items.erase(one);
    }
  }
  for (const auto& [item, bytes] : items) EXPECT_EQ(memory_pool_free(pool.get(), item), KV_OK);
  EXPECT_EQ(memory_pool_get_used(pool.get()), 0U);
  // Whatever it was cut into, it is one piece again.
  void* const all = memory_pool_alloc(pool.get(), kPoolBytes);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(memory_pool_alloc(pool.get(), 1), nullptr);
  EXPECT_EQ(memory_pool_free(pool.get(), all), KV_OK);
}

TEST(CompatPool, RefusesWhatIsNoItem) {
  const PoolOwner pool = make_pool();
  EXPECT_EQ(memory_pool_alloc(pool.get(), 0), nullptr);
  EXPECT_EQ(memory_pool_alloc(pool.get(), kPoolBytes + 1), nullptr);
  EXPECT_EQ(memory_pool_alloc(pool.get(), SIZE_MAX), nullptr);
  auto* const item = static_cast<std::byte*>(memory_pool_alloc(pool.get(), 128));
  EXPECT_EQ(memory_pool_free(pool.get(), item + 64), KV_ERR_BAD_ARGUMENT);
  int other = 0;
  EXPECT_EQ(memory_pool_free(pool.get(), &other), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(memory_pool_free(pool.get(), nullptr), KV_OK);
  EXPECT_EQ(memory_pool_alloc(nullptr, 64), nullptr);
  EXPECT_EQ(memory_pool_free(nullptr, item), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(memory_pool_create(0, false), nullptr);
  EXPECT_EQ(memory_pool_create(std::size_t{1} << 50, false), nullptr);
  EXPECT_STRNE(kv_error_detail(), "");
}

TEST(CompatPool, IsSafeAmongThreads) {
  const PoolOwner pool = make_pool(std::size_t{16} << 20);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937_64 random(t);
      std::vector<std::pair<unsigned char*, std::size_t>> mine;
      for (int i = 0; i < 5000; ++i) {
        if (mine.size() == 64) {
          const auto [item, bytes] = mine[random() % mine.size()];
          EXPECT_EQ(std::count(item, item + bytes, static_cast<unsigned char>(t)), static_cast<long>(bytes));
          EXPECT_EQ(memory_pool_free(pool.get(), item), KV_OK);
          std::erase(mine, std::pair(item, bytes));
        }
        const std::size_t bytes = 1 + random() % 2000;
        auto* const item = static_cast<unsigned char*>(memory_pool_alloc(pool.get(), bytes));
        ASSERT_NE(item, nullptr);
        std::memset(item, static_cast<int>(t), bytes);
        mine.emplace_back(item, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

kv_result_t put(const TableOwner& table, const std::string& key, const std::string& value) {
  return hash_table_put(table.get(), key.data(), key.size(), value.data(), value.size());
}
kv_result_t cas(const TableOwner& table, const std::string& key, std::uint64_t version, const std::string& value) {
  return hash_table_cas(table.get(), key.data(), key.size(), version, value.data(), value.size());
}
std::string get(const TableOwner& table, const std::string& key, std::uint64_t& version) {
  const kv_result_t found = hash_table_get(table.get(), key.data(), key.size());
  version = found.version;
  return found.status == KV_OK ? std::string(static_cast<const char*>(found.value), found.value_len) : "(none)";
}

TEST(CompatTable, CountsVersionsOfEachKeyFromOne) {
  const PoolOwner pool = make_pool();
  const TableOwner table = make_table(pool);
  ASSERT_TRUE(table) << kv_error_detail();
  EXPECT_EQ(put(table, "other", "x").version, 1U);
  EXPECT_EQ(put(table, "key", "one").version, 1U);
  EXPECT_EQ(put(table, "key", "two").version, 2U);
  EXPECT_EQ(cas(table, "key", 2, "three").version, 3U);
  const kv_result_t refused = cas(table, "key", 2, "four");
  EXPECT_EQ(refused.status, KV_ERR_CAS_FAILED);
  EXPECT_EQ(refused.version, 3U);
  EXPECT_EQ(cas(table, "none", 1, "x").status, KV_ERR_NOT_FOUND);
  std::uint64_t version = 0;
  EXPECT_EQ(get(table, "key", version), "three");
  EXPECT_EQ(version, 3U);
  const kv_result_t deleted = hash_table_delete(table.get(), "key", 3);
  EXPECT_EQ(deleted.status, KV_OK);
  EXPECT_EQ(deleted.version, 3U);
  EXPECT_EQ(hash_table_delete(table.get(), "key", 3).status, KV_ERR_NOT_FOUND);
  EXPECT_EQ(get(table, "key", version), "(none)");
}

TEST(CompatTable, AgreesWithAModel) {
  const PoolOwner pool = make_pool(std::size_t{8} << 20);
  const TableOwner table = make_table(pool);
  std::map<std::string, std::pair<std::uint64_t, std::string>> model;
  std::mt19937_64 random(7);
  for (int i = 0; i < 30'000; ++i) {
    const std::string key = "key " + std::to_string(random() % 300);
    const auto there = model.find(key);
    const std::string value(random() % (random() % 16 == 0 ? 6000 : 200), static_cast<char>('a' + i % 26));
    if (random() % 4 == 0) {
      ASSERT_EQ(hash_table_delete(table.get(), key.data(), key.size()).status,
                there == model.end() ? KV_ERR_NOT_FOUND : KV_OK);
      model.erase(key);
    } else if (random() % 2 == 0) {
      const std::uint64_t version = there == model.end() ? 1 : there->second.first + 1;
      ASSERT_EQ(put(table, key, value).version, version) << kv_error_detail();
      model[key] = {version, value};
    } else {
      std::uint64_t version = 0;
      ASSERT_EQ(get(table, key, version), there == model.end() ? "(none)" : there->second.second);
      ASSERT_EQ(version, there == model.end() ? 0 : there->second.first);
    }
  }
}

TEST(CompatTable, GivesItsMemoryBackAndReportsWhatItLacks) {
  const PoolOwner pool = make_pool(std::size_t{4} << 20);
  for (int i = 0; i < 3; ++i) {
    const TableOwner table = make_table(pool);
    ASSERT_TRUE(table);
    const std::string value(100'000, 'v');
    kv_result_t result{};
    int puts = 0;
    while ((result = put(table, "key " + std::to_string(puts), value)).status == KV_OK) ++puts;
    EXPECT_EQ(result.status, KV_ERR_STORE_FULL);
    EXPECT_GT(puts, 10);
    EXPECT_EQ(hash_table_delete(table.get(), "key 0", 5).status, KV_OK);
    EXPECT_EQ(put(table, "key again", value).status, KV_OK);
    EXPECT_EQ(put(table, "long", std::string(std::size_t{2} << 20, 'v')).status, KV_ERR_VALUE_TOO_LONG);
  }
  EXPECT_EQ(memory_pool_get_used(pool.get()), 0U);
  EXPECT_FALSE(make_table(pool, std::size_t{1} << 30)) << "more keys than memory";
  EXPECT_EQ(memory_pool_get_used(pool.get()), 0U);
  EXPECT_FALSE(make_table(make_pool(std::size_t{1} << 20)));
  EXPECT_EQ(hash_table_create(1, nullptr), nullptr);
}

TEST(CompatTable, RefusesWrongArguments) {
  const PoolOwner pool = make_pool();
  const TableOwner table = make_table(pool);
  EXPECT_EQ(put(table, "", "x").status, KV_ERR_KEY_TOO_LONG);
  EXPECT_EQ(put(table, std::string(KV_MAX_KEY_BYTES + 1, 'k'), "x").status, KV_ERR_KEY_TOO_LONG);
  EXPECT_EQ(put(table, std::string(KV_MAX_KEY_BYTES, 'k'), "").status, KV_OK);
  EXPECT_EQ(hash_table_put(nullptr, "k", 1, "v", 1).status, KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(hash_table_put(table.get(), nullptr, 1, "v", 1).status, KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(hash_table_put(table.get(), "k", 1, nullptr, 1).status, KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(hash_table_cas(table.get(), "k", 1, 1, nullptr, 1).status, KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(hash_table_get_place(table.get(), nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(hash_table_copy(table.get(), "k", 1, nullptr, nullptr, nullptr), KV_ERR_BAD_ARGUMENT);
  std::array<char, 2> small{};
  std::size_t length = small.size();
  EXPECT_EQ(put(table, "k", "long").status, KV_OK);
  EXPECT_EQ(hash_table_copy(table.get(), "k", 1, small.data(), &length, nullptr), KV_ERR_BUFFER_TOO_SMALL);
  EXPECT_EQ(length, 4U);
}

/// A table whose pool is registered at a server, and a client that READs it.
class CompatRemoteTable : public RdmaApi {
 protected:
  void open() {
    ASSERT_NO_FATAL_FAILURE(start());
    pool_memory_ = rdmaServerRegister(server, memory_pool_get_base(pool_.get()), memory_pool_get_size(pool_.get()),
                                      RDMA_ACCESS_REMOTE_READ);
    ASSERT_NE(pool_memory_, nullptr) << rdmaErrorDetail();
    client_ = connect();
    scratch_ = rdmaConnRegMem(client_, HASH_TABLE_SCRATCH_BYTES);
    ASSERT_NE(scratch_, nullptr) << rdmaErrorDetail();
    ASSERT_EQ(hash_table_get_place(table_.get(), &place_), KV_OK);
  }
  int read(const std::string& key, std::string& value, std::uint64_t& version) {
    value.resize(kMost);
    std::size_t length = value.size();
    const int code = hash_table_remote_get(client_, &place_, pool_memory_->rkey, scratch_, key.data(), key.size(),
                                           value.data(), &length, &version);
    value.resize(code == KV_OK ? length : 0);
    return code;
  }

  static constexpr std::size_t kMost = std::size_t{1} << 20;
  const PoolOwner pool_ = make_pool();
  const TableOwner table_ = make_table(pool_);
  const RdmaMemory* pool_memory_ = nullptr;
  RdmaConn* client_ = nullptr;
  const RdmaMemory* scratch_ = nullptr;
  hash_table_place_t place_{};
};

TEST_F(CompatRemoteTable, GivesWhatTheOwnerPut) {
  ASSERT_NO_FATAL_FAILURE(open());
  std::map<std::string, std::string> all;
  for (int i = 0; i < 3000; ++i) all["key " + std::to_string(i)] = std::string(static_cast<std::size_t>(i), 'v');
  all["page"] = std::string(4096, 'p');
  all["large"] = std::string(kMost, 'l');
  all["empty"] = "";
  all[std::string(KV_MAX_KEY_BYTES, 'k')] = "of a long key";
  for (const auto& [key, value] : all) ASSERT_EQ(put(table_, key, value).status, KV_OK);
  ASSERT_EQ(put(table_, "large", all["large"]).version, 2U);
  std::string got;
  std::uint64_t version = 0;
  for (const auto& [key, value] : all) {
    ASSERT_EQ(read(key, got, version), KV_OK) << key << ": " << kv_error_detail();
    ASSERT_EQ(got, value) << key;
    ASSERT_EQ(version, key == "large" ? 2U : 1U);
  }
  EXPECT_EQ(read("none", got, version), KV_ERR_NOT_FOUND);
  ASSERT_EQ(hash_table_delete(table_.get(), "page", 4).status, KV_OK);
  EXPECT_EQ(read("page", got, version), KV_ERR_NOT_FOUND);
}

TEST_F(CompatRemoteTable, RefusesWrongArguments) {
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_EQ(put(table_, "key", "value").status, KV_OK);
  std::array<char, 4> small{};
  std::size_t length = small.size();
  const auto get = [&](const hash_table_place_t& place, std::uint32_t rkey, const char* key, std::size_t key_bytes) {
    return hash_table_remote_get(client_, &place, rkey, scratch_, key, key_bytes, small.data(), &length, nullptr);
  };
  EXPECT_EQ(get(place_, pool_memory_->rkey, "key", 3), KV_ERR_BUFFER_TOO_SMALL);
  EXPECT_EQ(length, 5U);
  EXPECT_EQ(get(place_, pool_memory_->rkey, "", 0), KV_ERR_BAD_KEY);
  EXPECT_EQ(get(place_, pool_memory_->rkey, nullptr, 3), KV_ERR_BAD_ARGUMENT);
  hash_table_place_t wrong = place_;
  wrong.buckets = 0;
  EXPECT_EQ(get(wrong, pool_memory_->rkey, "key", 3), KV_ERR_BAD_ARGUMENT);
  wrong.buckets = place_.bytes;
  EXPECT_EQ(get(wrong, pool_memory_->rkey, "key", 3), KV_ERR_BAD_ARGUMENT);
  const RdmaMemory* const short_scratch = rdmaConnRegMem(client_, 4096);
  EXPECT_EQ(hash_table_remote_get(client_, &place_, pool_memory_->rkey, short_scratch, "key", 3, small.data(), &length,
                                  nullptr),
            KV_ERR_BAD_ARGUMENT);
  // Memory that is not the peer's to read.
  wrong = place_;
  wrong.address += std::uint64_t{1} << 40;
  EXPECT_LT(get(wrong, pool_memory_->rkey, "key", 3), 0);
}

TEST_F(CompatRemoteTable, NeverGivesAMixtureWhileTheOwnerChangesIt) {
  ASSERT_NO_FATAL_FAILURE(open());
  constexpr std::size_t kKeys = 8;
  constexpr int kRounds = 4000;
  // The value tells its version, and whose it is, in each of its bytes.
  const auto value_of = [](std::size_t key, std::uint64_t version) {
    const std::size_t bytes = version % 3 == 0 ? 20'000 : 50 + key;
    return std::string(bytes, static_cast<char>(version * kKeys + key));
  };
  for (std::size_t key = 0; key < kKeys; ++key)
    ASSERT_EQ(put(table_, "key " + std::to_string(key), value_of(key, 1)).version, 1U);
  std::atomic<bool> is_over{false};
  std::jthread owner([&] {
    for (std::uint64_t version = 2; version < kRounds; ++version)
      for (std::size_t key = 0; key < kKeys; ++key)
        EXPECT_EQ(put(table_, "key " + std::to_string(key), value_of(key, version)).version, version);
    is_over = true;
  });
  std::array<std::uint64_t, kKeys> last{};
  std::uint64_t reads = 0;
  for (bool is_last = false; !is_last;) {
    is_last = is_over;
    for (std::size_t key = 0; key < kKeys; ++key) {
      std::string got;
      std::uint64_t version = 0;
      const int code = read("key " + std::to_string(key), got, version);
      if (code == KV_ERR_AGAIN) continue;
      ASSERT_EQ(code, KV_OK) << kv_error_detail();
      ASSERT_EQ(got, value_of(key, version)) << "version " << version;
      ASSERT_GE(version, last[key]);
      last[key] = version;
      ++reads;
    }
  }
  owner.join();
  for (const std::uint64_t version : last) EXPECT_EQ(version, std::uint64_t{kRounds - 1});
  EXPECT_GT(reads, kKeys);
}

// An owner may write anything into its own memory.
TEST_F(CompatRemoteTable, SurvivesAnyBytes) {
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_EQ(put(table_, "key", std::string(5000, 'v')).status, KV_OK);
  ASSERT_EQ(put(table_, "small", "value").status, KV_OK);
  auto* const base = reinterpret_cast<std::byte*>(place_.address);
  const std::vector<std::byte> good(base, base + place_.bytes);
  std::mt19937_64 random(3);
  std::vector<std::size_t> used;
  for (std::size_t at = 0; at < good.size(); ++at)
    if (good[at] != std::byte{}) used.push_back(at);
  ASSERT_GT(used.size(), 100U);
  int changed = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::size_t at = used[random() % used.size()] & ~std::size_t{7};
    for (std::size_t b = 0; b < 8; ++b) base[at + b] = static_cast<std::byte>(random());
    for (const char* key : {"key", "small"}) {
      std::string got;
      std::uint64_t version = 0;
      const int code = read(key, got, version);
      ASSERT_LE(code, 0);
      if (code != KV_OK) ++changed;
    }
    std::copy_n(good.begin() + static_cast<std::ptrdiff_t>(at), 8, base + at);
  }
  EXPECT_GT(changed, 0);
  std::string got;
  std::uint64_t version = 0;
  EXPECT_EQ(read("small", got, version), KV_OK) << kv_error_detail();
  EXPECT_EQ(got, "value");
}

}  // namespace
}  // namespace verbena::test
