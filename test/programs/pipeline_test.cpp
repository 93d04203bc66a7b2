#include "programs/pipeline.hpp"

#include "base/text.hpp"
#include "programs/files.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace verbena::programs {
namespace {

/// A client over a map of its own, which completes the oldest operation at each poll.
class FakeClient final : public kv::Client {
 public:
  unsigned depth = 4;
  bool has_memory = true;
  bool dead = false;
  std::map<std::string, std::string> items;
  std::size_t most_in_flight = 0;

  using Client::get;
  using Client::put;

  kv::Outcome put(kv::Key key, std::span<const std::byte> value, Deadline) noexcept override {
    items[text(key)] = text(value);
    return {.version = ++version_};
  }
  kv::Outcome put(kv::Key key, std::span<const std::byte> value, const kv::PutOptions&, Deadline) noexcept override {
    return put(key, value, Deadline::now());
  }
  kv::Outcome get(kv::Key key, std::span<std::byte> out, Deadline) noexcept override {
    const auto item = items.find(text(key));
    if (item == items.end()) return {.status = Status::kNotFound};
    const std::size_t length = item->second.size();
    if (length > out.size()) return {.status = Status::kBufferTooSmall, .length = length};
    std::memcpy(out.data(), item->second.data(), length);
    return {.version = 1, .length = length};
  }
  kv::Outcome cas(kv::Key, std::uint64_t, std::span<const std::byte>, Deadline) noexcept override { return {}; }
  kv::Outcome erase(kv::Key, Deadline) noexcept override { return {}; }
  void get(std::span<kv::GetRequest>, Deadline) noexcept override {}
  void put(std::span<kv::PutRequest>, Deadline) noexcept override {}
  Result<kv::Cell> open_cell(kv::Key, std::uint64_t, Deadline) noexcept override { return kv::Cell{}; }
  Status fetch_add(const kv::Cell&, std::uint64_t, std::uint64_t&, Deadline) noexcept override { return {}; }
  Status compare_swap(const kv::Cell&, std::uint64_t, std::uint64_t, std::uint64_t&, Deadline) noexcept override {
    return {};
  }
  Status read(const kv::Cell&, std::uint64_t&, Deadline) noexcept override { return {}; }

  Status keys(kv::Key, kv::KeyCursor&, kv::KeyPage&, Deadline) noexcept override { return {}; }
  Status flush(kv::Key, std::uint64_t&, Deadline) noexcept override { return {}; }

  Status start_put(kv::Key key, std::span<const std::byte> value, std::uint64_t cookie) noexcept override {
    if (pending_.size() >= depth) return Status::kAgain;
    return note({cookie, put(key, value)});
  }
  Status start_put(kv::Key key, std::span<const std::byte> value, const kv::PutOptions&,
                   std::uint64_t cookie) noexcept override {
    return start_put(key, value, cookie);
  }
  Status start_get(kv::Key key, std::span<std::byte> out, std::uint64_t cookie) noexcept override {
    if (pending_.size() >= depth) return Status::kAgain;
    return note({cookie, get(key, out)});
  }
  std::size_t poll(std::span<kv::Completion> completions) noexcept override {
    if (dead || pending_.empty() || completions.empty()) return 0;
    completions[0] = pending_.front();
    pending_.pop_front();
    return 1;
  }
  std::size_t wait(std::span<kv::Completion> completions, Deadline) noexcept override { return poll(completions); }
  std::size_t in_flight() const noexcept override { return pending_.size(); }
  std::span<std::byte> allocate(std::size_t bytes) noexcept override {
    if (!has_memory) return {};
    memory_.resize(bytes);
    return memory_;
  }
  verbena::Counters counters() const noexcept override { return {}; }
  kv::LookupCounters lookups() const noexcept override { return {}; }
  Result<kv::ServerStatistics> server_statistics(Deadline) noexcept override { return kv::ServerStatistics{}; }
  std::size_t max_value_bytes() const noexcept override { return 1 << 20; }
  Error connection_error() const noexcept override {
    return dead ? Error(Status::kPeerLost, "poll", 0, "the server died") : Error();
  }
  const char* description() const noexcept override { return "fake"; }

 protected:
  Deadline deadline() const noexcept override { return Deadline::never(); }

 private:
  static std::string text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  Status note(kv::Completion completion) {
    pending_.push_back(completion);
    most_in_flight = std::max(most_in_flight, pending_.size());
    return Status::kOk;
  }

  std::deque<kv::Completion> pending_;
  std::vector<std::byte> memory_;
  std::uint64_t version_ = 0;
};

constexpr std::chrono::milliseconds kPatience{50};

/// Puts `count` keys through the pipeline; how many completed.
std::size_t put_many(FakeClient& client, Pipeline& pipeline, std::size_t count) {
  std::size_t settled = 0;
  const auto settle = [&](const Pipeline::Slot&, const kv::Outcome& outcome) {
    settled += outcome.status == Status::kOk;
  };
  for (std::size_t i = 0; i < count; ++i) {
    Pipeline::Slot* const slot = pipeline.await_free(settle);
    if (slot == nullptr) break;
    const std::string key = std::to_string(i);
    const auto put = [&] {
      return client.start_put(bytes_of_text(key), slot->buffer.first(1), pipeline.cookie_of(*slot));
    };
    if (pipeline.start(put, settle) != Status::kOk) pipeline.give_back(*slot);
  }
  pipeline.drain(settle);
  return settled;
}

TEST(Pipeline, CompletesAllAtFullDepth) {
  FakeClient client;
  Pipeline pipeline(client, 4, 100, kPatience);
  EXPECT_EQ(put_many(client, pipeline, 1000), 1000U);
  EXPECT_EQ(client.items.size(), 1000U);
  EXPECT_EQ(client.most_in_flight, 4U);
  EXPECT_FALSE(pipeline.broken());
}

TEST(Pipeline, TheServersSmallerDepthOnlySlowsIt) {
  FakeClient client;
  client.depth = 2;
  Pipeline pipeline(client, 8, 100, kPatience);
  EXPECT_EQ(put_many(client, pipeline, 100), 100U);
  EXPECT_EQ(client.most_in_flight, 2U);
}

TEST(Pipeline, SlotsDoNotOverlap) {
  FakeClient client;
  Pipeline pipeline(client, 3, 100, kPatience);
  std::vector<Pipeline::Slot*> slots{pipeline.take(), pipeline.take(), pipeline.take()};
  EXPECT_EQ(pipeline.take(), nullptr);
  EXPECT_GE(pipeline.slot_bytes(), 100U);
  std::ranges::sort(slots, {}, [](const Pipeline::Slot* slot) { return slot->buffer.data(); });
  EXPECT_LE(slots[0]->buffer.data() + slots[0]->buffer.size(), slots[1]->buffer.data());
  EXPECT_LE(slots[1]->buffer.data() + slots[1]->buffer.size(), slots[2]->buffer.data());
}

TEST(Pipeline, WithoutRegisteredMemorySlotsStayBelowTheEagerLimit) {
  FakeClient client;
  client.has_memory = false;
  Pipeline pipeline(client, 2, 1 << 20, kPatience);
  EXPECT_LT(pipeline.slot_bytes(), kv::kEagerBytes);
  EXPECT_EQ(put_many(client, pipeline, 10), 10U);
}

TEST(Pipeline, ADeadConnectionEndsTheWait) {
  FakeClient client;
  Pipeline pipeline(client, 2, 100, std::chrono::milliseconds{600'000});
  client.dead = true;
  EXPECT_EQ(put_many(client, pipeline, 10), 0U);
  EXPECT_TRUE(pipeline.broken());
}

TEST(Values, GetGrowsItsBuffer) {
  FakeClient client;
  client.items["large"] = std::string(100'000, 'x');
  std::vector<std::byte> value;
  const kv::Outcome outcome = get_whole(client, "large", value);
  EXPECT_EQ(outcome.status, Status::kOk);
  ASSERT_EQ(outcome.length, 100'000U);
  EXPECT_GE(value.size(), outcome.length);
  EXPECT_EQ(value[99'999], std::byte{'x'});
  EXPECT_EQ(get_whole(client, "none", value).status, Status::kNotFound);
}

}  // namespace
}  // namespace verbena::programs
