// Awaited operations of a store's clients, by each way that a client finds its items: what they return, who waits for
// whom, and that nothing of the caller's is touched once an awaitable is gone.
#include "fixture.hpp"

#include "fake_server.hpp"
#include "model.hpp"

#include <verbena/coroutines_kv.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace verbena::coroutine {
namespace {

using kv::Cell;
using kv::Client;
using kv::Lookup;
using kv::Outcome;
using kv::Server;
using kv::testing_support::bytes_of;
using kv::testing_support::FakeServer;
using kv::testing_support::key_of;

using CellValue = std::expected<std::uint64_t, Status>;

class StoreAwaits : public testing::Test {
 protected:
  void SetUp() override {
    loop = loop_of({.frames = {.frames = 256, .frame_bytes = 8192}});
    ASSERT_NE(loop, nullptr);
  }
  void serve(kv::ServerOptions options = kv::testing_support::small_server()) {
    options.max_cells = 16;
    server = kv::testing_support::start(options);
    ASSERT_NE(server, nullptr);
  }
  void meet(kv::ClientOptions options) {
    client = kv::testing_support::connect(options);
    ASSERT_NE(client, nullptr);
  }
  [[nodiscard]] kv::ClientOptions options_for(Lookup lookup, unsigned depth = 32) const {
    kv::ClientOptions options = kv::testing_support::client_options(*server);
    options.lookup = lookup;
    options.depth = depth;
    return options;
  }
  template <class T>
  [[nodiscard]] T wait_for(Task<T> task) {
    return sync_wait(*loop, std::move(task), soon());
  }
  void run_all() {
    ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  }
  void TearDown() override {
    if (loop == nullptr) return;
    EXPECT_EQ(loop->frames().counts().in_use, 0u);
    EXPECT_EQ(loop->waiting(), 0u);
  }

  std::unique_ptr<Loop> loop;
  std::unique_ptr<Server> server;
  std::unique_ptr<Client> client;
};

Task<Outcome> get_one(Loop& /*loop*/, Client& client, std::string_view key, std::span<std::byte> out,
                      std::optional<Deadline> until = {}) {
  co_return co_await get(client, key_of(key), out, until);
}
Task<Outcome> put_one(Loop& /*loop*/, Client& client, std::string_view key, std::span<const std::byte> value,
                      std::optional<Deadline> until = {}) {
  co_return co_await put(client, key_of(key), value, until);
}
Task<Outcome> put_for(Loop& /*loop*/, Client& client, std::string_view key, std::span<const std::byte> value,
                      std::chrono::milliseconds time) {
  co_return co_await put(client, key_of(key), value, {.time_to_live = time});
}
Task<Outcome> swap_one(Loop& /*loop*/, Client& client, std::string_view key, std::uint64_t expected,
                       std::span<const std::byte> value) {
  co_return co_await cas(client, key_of(key), expected, value);
}
Task<Outcome> erase_one(Loop& /*loop*/, Client& client, std::string_view key) {
  co_return co_await erase(client, key_of(key));
}
Task<Status> status_of(Loop& /*loop*/, Task<Outcome> task) { co_return (co_await std::move(task)).status; }

std::string_view text_of(std::span<const std::byte> bytes, std::size_t length) {
  return {reinterpret_cast<const char*>(bytes.data()), length};
}

class StoreAwaitsByLookup : public StoreAwaits, public testing::WithParamInterface<Lookup> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StoreAwaits::SetUp());
    ASSERT_NO_FATAL_FAILURE(serve());
    ASSERT_NO_FATAL_FAILURE(meet(options_for(GetParam())));
  }
};

TEST_P(StoreAwaitsByLookup, EachReturnsWhatTheBlockingCallDoes) {
  std::array<std::byte, 64> out{};
  EXPECT_EQ(wait_for(get_one(*loop, *client, "key", out)).status, Status::kNotFound);
  const Outcome put = wait_for(put_one(*loop, *client, "key", bytes_of("value")));
  ASSERT_EQ(put.status, Status::kOk) << error_detail();
  Outcome got = wait_for(get_one(*loop, *client, "key", out));
  ASSERT_EQ(got.status, Status::kOk) << error_detail();
  EXPECT_EQ(got.version, put.version);
  EXPECT_EQ(text_of(out, got.length), "value");
  EXPECT_EQ(client->get(key_of("key"), out).version, put.version);

  const Outcome refused = wait_for(swap_one(*loop, *client, "key", put.version + 1, bytes_of("other")));
  EXPECT_EQ(refused.status, Status::kVersionMismatch);
  EXPECT_EQ(refused.version, put.version);
  const Outcome swapped = wait_for(swap_one(*loop, *client, "key", put.version, bytes_of("other value")));
  ASSERT_EQ(swapped.status, Status::kOk);
  EXPECT_GT(swapped.version, put.version);
  got = wait_for(get_one(*loop, *client, "key", std::span(out).first(5)));
  EXPECT_EQ(got.status, Status::kBufferTooSmall);
  EXPECT_EQ(got.length, 11u);

  EXPECT_EQ(wait_for(erase_one(*loop, *client, "key")).status, Status::kOk);
  EXPECT_EQ(wait_for(erase_one(*loop, *client, "key")).status, Status::kNotFound);
  EXPECT_EQ(wait_for(get_one(*loop, *client, "", out)).status, Status::kBadKey);
  EXPECT_EQ(wait_for(swap_one(*loop, *client, "key", ~std::uint64_t{0}, bytes_of("v"))).status, Status::kBadArgument);
  const std::vector<std::byte> large(kv::kEagerBytes);
  EXPECT_EQ(wait_for(put_one(*loop, *client, "key", large)).status, Status::kBadArgument);
}

TEST_P(StoreAwaitsByLookup, ValuesThatExpire) {
  std::array<std::byte, 64> out{};
  ASSERT_EQ(wait_for(put_for(*loop, *client, "key", bytes_of("value"), std::chrono::hours{1})).status, Status::kOk);
  EXPECT_GT(wait_for(get_one(*loop, *client, "key", out)).time_left, std::chrono::minutes{30});
  EXPECT_EQ(wait_for(put_for(*loop, *client, "key", bytes_of("value"), {})).status, Status::kBadArgument);
  ASSERT_EQ(wait_for(put_for(*loop, *client, "key", bytes_of("value"), std::chrono::milliseconds{1})).status,
            Status::kOk);
  while (wait_for(get_one(*loop, *client, "key", out)).status == Status::kOk) {}
  EXPECT_EQ(wait_for(get_one(*loop, *client, "key", out)).status, Status::kNotFound);
}

TEST_P(StoreAwaitsByLookup, LargeValues) {
  constexpr std::size_t kBytes = 1'000'000;
  const std::span<std::byte> mine = client->allocate(kBytes);
  const std::span<std::byte> registered = client->allocate(kBytes);
  ASSERT_EQ(registered.size(), kBytes);
  std::vector<std::byte> plain(kBytes);
  for (unsigned round = 1; round < 4; ++round) {
    for (std::size_t i = 0; i < kBytes; ++i) mine[i] = static_cast<std::byte>(i * round >> 3);
    const Outcome put = wait_for(put_one(*loop, *client, "large", mine));
    ASSERT_EQ(put.status, Status::kOk) << error_detail();
    for (const std::span<std::byte> out : {std::span(plain), registered}) {
      const Outcome got = wait_for(get_one(*loop, *client, "large", out));
      ASSERT_EQ(got.status, Status::kOk) << error_detail();
      EXPECT_EQ(got.version, put.version);
      EXPECT_TRUE(std::ranges::equal(out, mine));
    }
  }
}

Task<Status> use_keys(Loop& /*loop*/, Client& client, unsigned number, int rounds) {
  const std::string key = "of " + std::to_string(number);
  for (int i = 0; i < rounds; ++i) {
    const std::string value = key + " in round " + std::to_string(i);
    const Outcome written = co_await put(client, key_of(key), bytes_of(value));
    if (written.status != Status::kOk) co_return written.status;
    std::array<std::byte, 64> out;
    const Outcome got = co_await get(client, key_of(key), out);
    if (got.status != Status::kOk) co_return got.status;
    if (got.version != written.version || text_of(out, got.length) != value) co_return Status::kProtocol;
  }
  co_return (co_await erase(client, key_of(key))).status;
}

TEST_P(StoreAwaitsByLookup, MoreThanTheClientHasPlacesFor) {
  ASSERT_NO_FATAL_FAILURE(meet(options_for(GetParam(), 3)));
  constexpr unsigned kTasks = 100;
  for (unsigned i = 0; i < kTasks; ++i)
    ASSERT_EQ(loop->spawn(use_keys(*loop, *client, i, 10)), Status::kOk) << error_detail();
  EXPECT_EQ(loop->waiting(), kTasks) << "all wait, for a reply or for a place";
  run_all();
  EXPECT_EQ(loop->failed(), 0u);
}

TEST_P(StoreAwaitsByLookup, BlockingAndPipelinedCallsComeBetween) {
  for (unsigned i = 0; i < 8; ++i) ASSERT_EQ(loop->spawn(use_keys(*loop, *client, i, 20)), Status::kOk);
  std::array<std::byte, 64> out;
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(client->put(key_of("mine"), bytes_of("blocking")).status, Status::kOk);
    ASSERT_EQ(client->start_get(key_of("mine"), out, i), Status::kOk);
    (void)loop->poll();
    std::array<kv::Completion, 4> done;
    ASSERT_EQ(client->wait(done, soon()), 1u);
    EXPECT_EQ(done[0].cookie, i);
    EXPECT_EQ(done[0].outcome.status, Status::kOk);
  }
  run_all();
  EXPECT_EQ(loop->failed(), 0u);
  EXPECT_EQ(client->in_flight(), 0u);
}

Task<CellValue> add(Loop& /*loop*/, Client& client, Cell cell, std::uint64_t delta) {
  co_return co_await fetch_add(client, cell, delta);
}
Task<CellValue> swap(Loop& /*loop*/, Client& client, Cell cell, std::uint64_t expected, std::uint64_t desired) {
  co_return co_await compare_swap(client, cell, expected, desired);
}
Task<CellValue> look(Loop& /*loop*/, Client& client, Cell cell) { co_return co_await read(client, cell); }

TEST_P(StoreAwaitsByLookup, Cells) {
  const auto cell = client->open_cell(key_of("cell"), 5);
  ASSERT_OK(cell);
  if (std::uint64_t old = 0; client->fetch_add(*cell, 0, old) == Status::kUnsupported)
    GTEST_SKIP() << "the device has no atomics";
  EXPECT_EQ(wait_for(add(*loop, *client, *cell, 3)).value(), 5u);
  EXPECT_EQ(wait_for(swap(*loop, *client, *cell, 5, 9)).value(), 8u) << "nothing was swapped";
  EXPECT_EQ(wait_for(swap(*loop, *client, *cell, 8, 9)).value(), 8u);
  EXPECT_EQ(wait_for(look(*loop, *client, *cell)).value(), 9u);
  EXPECT_EQ(wait_for(look(*loop, *client, {.address = cell->address + 1})).error(), Status::kBadArgument);
  std::array<std::byte, 8> out;
  EXPECT_EQ(wait_for(get_one(*loop, *client, "cell", out)).status, Status::kWrongKind);
}

Task<Status> add_often(Loop& /*loop*/, Client& client, Cell cell, int rounds) {
  for (int i = 0; i < rounds; ++i)
    if (const CellValue old = co_await fetch_add(client, cell, 1); !old) co_return old.error();
  co_return Status::kOk;
}

TEST_P(StoreAwaitsByLookup, AddsOfManyTasksAllCount) {
  const auto cell = client->open_cell(key_of("cell"), 0);
  ASSERT_OK(cell);
  std::uint64_t value = 0;
  if (client->fetch_add(*cell, 0, value) == Status::kUnsupported) GTEST_SKIP() << "the device has no atomics";
  for (int i = 0; i < 20; ++i) ASSERT_EQ(loop->spawn(add_often(*loop, *client, *cell, 50)), Status::kOk);
  run_all();
  EXPECT_EQ(loop->failed(), 0u);
  EXPECT_EQ(client->read(*cell, value), Status::kOk);
  EXPECT_EQ(value, 1000u);
}

TEST_P(StoreAwaitsByLookup, AnotherLoopIsRefusedMeanwhile) {
  const auto other = loop_of();
  const auto value = bytes_of("value");
  ASSERT_EQ(loop->spawn(status_of(*loop, put_one(*loop, *client, "key", value))), Status::kOk);
  EXPECT_EQ(sync_wait(*other, put_one(*other, *client, "key", value), soon()).status, Status::kBusy);
  run_all();
  EXPECT_EQ(sync_wait(*other, put_one(*other, *client, "key", value), soon()).status, Status::kOk);
  EXPECT_EQ(wait_for(erase_one(*loop, *client, "key")).status, Status::kOk);
}

TEST_P(StoreAwaitsByLookup, ACancelledScopeRefuses) {
  CancelSource source;
  source.cancel();
  const auto body = [](Loop& of, CancelSource& by, Client& over) -> Task<Status> {
    co_return co_await cancellable(by, status_of(of, erase_one(of, over, "key")));
  };
  EXPECT_EQ(wait_for(body(*loop, source, *client)), Status::kCancelled);
}

TEST_P(StoreAwaitsByLookup, NoRoomForAnotherWait) {
  const auto small = loop_of({.waits = 1});
  const auto value = bytes_of("value");
  ASSERT_EQ(small->spawn(status_of(*small, put_one(*small, *client, "key", value))), Status::kOk);
  ASSERT_EQ(small->spawn(status_of(*small, put_one(*small, *client, "key", value))), Status::kOk);
  ASSERT_EQ(small->run_until([&] { return small->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(small->failed(), 1u);
}

TEST_P(StoreAwaitsByLookup, AClientThatEndsTellsAll) {
  ASSERT_NO_FATAL_FAILURE(meet(options_for(GetParam(), 2)));
  const auto value = bytes_of("value");
  for (unsigned i = 0; i < 10; ++i)
    ASSERT_EQ(loop->spawn(status_of(*loop, put_one(*loop, *client, "key", value))), Status::kOk);
  EXPECT_EQ(loop->waiting(), 10u);
  client.reset();
  EXPECT_EQ(loop->waiting(), 0u) << "all were told";
  run_all();
  EXPECT_GE(loop->failed(), 8u) << "those that waited for a place";
}

TEST_P(StoreAwaitsByLookup, AServerThatStopsEndsAll) {
  for (unsigned i = 0; i < 40; ++i) ASSERT_EQ(loop->spawn(use_keys(*loop, *client, i, 1'000'000)), Status::kOk);
  for (int i = 0; i < 20; ++i) (void)loop->poll();
  server->stop();
  run_all();
  EXPECT_EQ(loop->failed(), 40u);
  const Status status = wait_for(erase_one(*loop, *client, "key")).status;
  EXPECT_EQ(status, client->connection_error().status());
  EXPECT_TRUE(status == Status::kClosed || status == Status::kPeerLost) << to_string(status);
}

/// Everything that is awaited of a client. Memory of the caller's is in `room`, and comes back with the frame.
Task<Status> everything_of_client(Loop& /*loop*/, Client& client, std::optional<Cell> cell, std::span<std::byte> large,
                                  std::span<std::byte> room, int& answers) {
  const std::array<std::span<const std::byte>, 2> values{bytes_of("value"), large};
  for (const std::span<const std::byte> value : values) {
    if (const Outcome done = co_await put(client, key_of("key"), value, soon()); done.status != Status::kOk)
      co_return done.status;
    ++answers;
    const Outcome got = co_await get(client, key_of("key"), room, soon());
    if (got.status != Status::kOk) co_return got.status;
    ++answers;
    const Outcome swapped = co_await cas(client, key_of("key"), got.version, bytes_of("other"), soon());
    if (swapped.status != Status::kOk) co_return swapped.status;
    ++answers;
  }
  if (cell) {
    if (const CellValue old = co_await fetch_add(client, *cell, 1, soon()); !old) co_return old.error();
    if (const CellValue old = co_await compare_swap(client, *cell, 0, 1, soon()); !old) co_return old.error();
    if (const CellValue old = co_await read(client, *cell, soon()); !old) co_return old.error();
  }
  ++answers;
  const Status erased = (co_await erase(client, key_of("key"), soon())).status;
  ++answers;
  co_return erased;
}
constexpr int kAllAnswers = 8;

enum class Ending : std::uint8_t { kDrop, kCancel, kTimeLimit };

class StoreDrops : public StoreAwaits, public testing::WithParamInterface<std::tuple<Lookup, Ending>> {
 protected:
  static constexpr std::size_t kLarge = 300'000;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StoreAwaits::SetUp());
    ASSERT_NO_FATAL_FAILURE(serve());
    ASSERT_NO_FATAL_FAILURE(meet(options_for(std::get<Lookup>(GetParam()), 4)));
    large = client->allocate(kLarge);
    registered = client->allocate(kLarge);
    ASSERT_EQ(registered.size(), kLarge);
    const auto opened = client->open_cell(key_of("cell"), 0);
    ASSERT_OK(opened);
    std::uint64_t old = 0;
    if (client->fetch_add(*opened, 0, old) == Status::kOk) cell = *opened;
  }
  /// Ends it after `turns` turns, and looks that nothing comes into its memory. Returns the answers before that.
  int run(int turns, std::span<std::byte> room);

  std::span<std::byte> large;
  std::span<std::byte> registered;
  std::optional<Cell> cell;
};

int StoreDrops::run(int turns, std::span<std::byte> room) {
  const Ending ending = std::get<Ending>(GetParam());
  CancelSource source;
  int answers = 0;
  Status status = Status::kOk;
  const auto guarded = [](Loop& /*of*/, CancelSource& by, Task<Status> task, Status& into) -> Task<Status> {
    into = co_await cancellable(by, std::move(task));
    co_return into;
  };
  const auto limited = [](Loop& /*of*/, Deadline limit, Task<Status> task) -> Task<Status> {
    co_return co_await within(limit, std::move(task));
  };
  const Deadline limit = ending == Ending::kTimeLimit ? Deadline::after(std::chrono::microseconds{50 * turns}) : soon();
  auto all = everything_of_client(*loop, *client, cell, large, room, answers);
  EXPECT_EQ(loop->spawn(guarded(*loop, source, limited(*loop, limit, std::move(all)), status)), Status::kOk);
  for (int i = 0; i < turns && loop->spawned() != 0; ++i) (void)loop->poll();
  const int before = answers;
  if (ending == Ending::kDrop) {
    loop->drop_all();
  } else {
    if (ending == Ending::kCancel) source.cancel();
    run_all();
    EXPECT_TRUE(answers == kAllAnswers || status == Status::kCancelled || status == Status::kTimedOut)
        << to_string(status);
  }
  EXPECT_EQ(loop->waiting(), 0u);
  std::ranges::fill(room, std::byte{0xEE});
  EXPECT_EQ(client->settle(soon()), Status::kOk);
  EXPECT_TRUE(std::ranges::all_of(room, [](std::byte each) { return each == std::byte{0xEE}; }))
      << "it was written behind the end, after " << turns << " turns";
  // Who was given up has not ended the connection.
  EXPECT_EQ(client->put(key_of("still"), bytes_of("there")).status, Status::kOk) << error_detail();
  return before;
}

TEST_P(StoreDrops, AfterEachTurn) {
  std::vector<std::byte> plain(kLarge);
  for (const std::span<std::byte> room : {std::span(plain), registered}) {
    int most = 0;
    for (int turns = 0; turns < 1'000'000 && most < kAllAnswers; turns += 1 + turns / 3) {
      most = std::max(most, run(turns, room));
      ASSERT_FALSE(HasFailure()) << "after " << turns << " turns";
    }
    if (std::get<Ending>(GetParam()) != Ending::kTimeLimit) {
      EXPECT_EQ(most, kAllAnswers) << "each of its waits was reached";
    }
  }
}

std::string lookup_name(Lookup lookup) {
  std::string name = kv::to_string(lookup);
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Each, StoreAwaitsByLookup, testing::Values(Lookup::kAuto, Lookup::kMessage, Lookup::kOneSided),
                         [](const auto& made) { return lookup_name(made.param); });
std::string drop_name(const testing::TestParamInfo<std::tuple<Lookup, Ending>>& made) {
  constexpr std::array<const char*, 3> kNames{"Dropped", "Cancelled", "TimedOut"};
  return lookup_name(std::get<Lookup>(made.param)) + kNames[static_cast<std::size_t>(std::get<Ending>(made.param))];
}
INSTANTIATE_TEST_SUITE_P(Each, StoreDrops,
                         testing::Combine(testing::Values(Lookup::kAuto, Lookup::kMessage, Lookup::kOneSided),
                                          testing::Values(Ending::kDrop, Ending::kCancel, Ending::kTimeLimit)),
                         drop_name);

// --- a server whose replies come late

/// Keeps its answers to gets back until it is told to go on; then they come with the next request, before its answer.
class LateServer {
 public:
  [[nodiscard]] FakeServer::Answer answer() {
    return [this](channel::Connection& connection, std::span<const std::byte> body) {
      kv::wire::Request request;
      if (kv::wire::decode_request(body, request) != Status::kOk || request.head.op != kv::wire::Op::kGet) return false;
      if (is_silent.load()) {
        ids_.push_back(request.head.id);
        ++kept;
        return true;
      }
      for (const std::uint32_t id : std::exchange(ids_, {})) {
        const kv::wire::ReplyHead head{
            .kind = kv::wire::ReplyKind::kValue, .id = id, .version = FakeServer::kVersion, .entry = 0};
        EXPECT_EQ(connection.send(kv::wire::bytes_of(head), bytes_of("late")), Status::kOk);
      }
      return false;
    };
  }
  std::atomic<bool> is_silent{true};
  std::atomic<unsigned> kept{0};

 private:
  std::vector<std::uint32_t> ids_;
};

class LateReplies : public StoreAwaits {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StoreAwaits::SetUp());
    fake = std::make_unique<FakeServer>(late.answer());
    kv::ClientOptions options = kv::testing_support::client_options(fake->port());
    options.lookup = Lookup::kMessage;
    options.depth = 2;
    ASSERT_NO_FATAL_FAILURE(meet(options));
  }
  void TearDown() override {
    client.reset();
    StoreAwaits::TearDown();
  }
  /// Has the server answer, and looks that `room`, which was given up, stays as it is.
  void expect_untouched(std::span<std::byte> room) {
    std::ranges::fill(room, std::byte{0xEE});
    EXPECT_EQ(client->settle(in_ms(1)), Status::kTimedOut) << "it is under way still";
    late.is_silent = false;
    std::array<std::byte, 64> out;
    ASSERT_EQ(client->get(key_of("next"), out).status, Status::kOk) << error_detail();
    EXPECT_EQ(client->settle(soon()), Status::kOk);
    EXPECT_TRUE(std::ranges::all_of(room, [](std::byte each) { return each == std::byte{0xEE}; }));
    late.is_silent = true;
  }

  LateServer late;
  std::unique_ptr<FakeServer> fake;
};

/// A server that notes which keys it is asked for, and a client that has one place.
class QueuedAwaits : public StoreAwaits {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StoreAwaits::SetUp());
    fake = std::make_unique<FakeServer>([this](channel::Connection& /*connection*/, std::span<const std::byte> body) {
      kv::wire::Request request;
      if (kv::wire::decode_request(body, request) != Status::kOk || request.head.op != kv::wire::Op::kGet) return false;
      const std::lock_guard lock(mutex_);
      asked_ += text_of(request.key, request.key.size());
      return false;
    });
    kv::ClientOptions options = kv::testing_support::client_options(fake->port());
    options.lookup = Lookup::kMessage;
    options.depth = 1;
    ASSERT_NO_FATAL_FAILURE(meet(options));
  }
  void TearDown() override {
    client.reset();
    StoreAwaits::TearDown();
  }
  void ask_for(std::string_view key) {
    ASSERT_EQ(loop->spawn(status_of(*loop, get_one(*loop, *client, key, out))), Status::kOk);
  }
  [[nodiscard]] std::string asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  std::array<std::byte, 64> out{};
  std::unique_ptr<FakeServer> fake;

 private:
  std::mutex mutex_;
  std::string asked_;
};

TEST_F(QueuedAwaits, BeginInTheirOrder) {
  ASSERT_EQ(client->start_get(key_of("p"), out, 1), Status::kOk);
  for (const std::string_view key : {"a", "b", "c"}) ask_for(key);
  // The place is the pipelined one's until it is taken: a look finds none, and changes nothing.
  (void)loop->poll();
  std::array<kv::Completion, 1> done;
  ASSERT_EQ(client->wait(done, soon()), 1u);
  // Now it is free, but three wait for it.
  ask_for("d");
  run_all();
  EXPECT_EQ(loop->failed(), 0u);
  EXPECT_EQ(asked(), "pabcd");
}

TEST_F(LateReplies, ADeadlineLeavesTheConnectionAlive) {
  std::array<std::byte, 64> out;
  EXPECT_EQ(wait_for(get_one(*loop, *client, "key", out, in_ms(5))).status, Status::kTimedOut);
  expect_untouched(out);
  late.is_silent = false;
  const Outcome got = wait_for(get_one(*loop, *client, "key", out));
  EXPECT_EQ(got.status, Status::kOk);
  EXPECT_EQ(text_of(out, got.length), FakeServer::kByMessage);
}

TEST_F(LateReplies, ADroppedGetWritesNothing) {
  std::array<std::byte, 64> out;
  ASSERT_EQ(loop->spawn(status_of(*loop, get_one(*loop, *client, "key", out))), Status::kOk);
  ASSERT_EQ(loop->run_until([&] { return late.kept == 1; }, soon()), Status::kOk);
  loop->drop_all();
  expect_untouched(out);
}

TEST_F(LateReplies, TheLoserOfAnyIsGivenUp) {
  std::array<std::byte, 64> out;
  const auto race = [](Loop& of, Client& over, std::span<std::byte> into) -> Task<Status> {
    const auto nap = [](Loop& /*of*/) -> Task<Status> { co_return co_await reached(in_ms(2)); };
    const auto first = co_await when_any(status_of(of, get_one(of, over, "key", into)), nap(of));
    co_return first.index == 1 ? first.result : Status::kSystem;
  };
  EXPECT_EQ(wait_for(race(*loop, *client, out)), Status::kOk);
  expect_untouched(out);
}

TEST_F(LateReplies, PlacesOfThoseGivenUpAreTakenUntilTheirReplies) {
  std::array<std::array<std::byte, 64>, 4> out;
  for (auto& each : out) ASSERT_EQ(loop->spawn(status_of(*loop, get_one(*loop, *client, "key", each))), Status::kOk);
  ASSERT_EQ(loop->run_until([&] { return late.kept == 2; }, soon()), Status::kOk);
  loop->drop_all();
  // Two are with the server; another one waits for a place, and none comes.
  EXPECT_EQ(wait_for(get_one(*loop, *client, "key", out[0], in_ms(5))).status, Status::kTimedOut);
  EXPECT_EQ(late.kept, 2u);
  EXPECT_EQ(client->settle(in_ms(1)), Status::kTimedOut);
  client.reset();
}

TEST_F(LateReplies, AClientThatEndsTellsThoseThatWait) {
  std::array<std::array<std::byte, 64>, 4> out;
  for (auto& each : out) ASSERT_EQ(loop->spawn(status_of(*loop, get_one(*loop, *client, "key", each))), Status::kOk);
  EXPECT_EQ(loop->waiting(), 4u);
  client.reset();
  EXPECT_EQ(loop->waiting(), 0u);
  run_all();
  EXPECT_EQ(loop->failed(), 4u);
}

// --- memory that rests

class RestingMemory : public StoreAwaits {
 protected:
  static constexpr std::size_t kBytes = 100'000;
  void begin(std::chrono::milliseconds grace) {
    kv::ServerOptions options = kv::testing_support::small_server();
    options.memory_bytes = std::size_t{1} << 20;
    options.max_items = 64;
    options.max_value_bytes = kBytes;
    options.grace = grace;
    ASSERT_NO_FATAL_FAILURE(serve(options));
    ASSERT_NO_FATAL_FAILURE(meet(options_for(Lookup::kMessage)));
    value = client->allocate(kBytes);
    ASSERT_EQ(value.size(), kBytes);
  }
  std::span<const std::byte> value;
};

/// What was read by message rests when it is replaced.
Task<Status> put_and_get(Loop& /*loop*/, Client& client, std::span<const std::byte> value, int count, Deadline until) {
  std::vector<std::byte> out(value.size());
  for (int i = 0; i < count; ++i) {
    if (const Outcome done = co_await put(client, key_of("key"), value, until); done.status != Status::kOk)
      co_return done.status;
    if (const Outcome done = co_await get(client, key_of("key"), out, soon()); done.status != Status::kOk)
      co_return done.status;
  }
  co_return Status::kOk;
}

TEST_F(RestingMemory, PutsAreRepeatedUntilThereIsSome) {
  ASSERT_NO_FATAL_FAILURE(begin(std::chrono::milliseconds{20}));
  EXPECT_EQ(wait_for(put_and_get(*loop, *client, value, 100, soon())), Status::kOk) << error_detail();
}

TEST_F(RestingMemory, TheStoreIsFullAtTheDeadline) {
  ASSERT_NO_FATAL_FAILURE(begin(std::chrono::milliseconds{60'000}));
  EXPECT_EQ(wait_for(put_and_get(*loop, *client, value, 100, Deadline::after(std::chrono::seconds{2}))),
            Status::kStoreFull);
}

TEST_F(RestingMemory, DroppedWhileItRests) {
  ASSERT_NO_FATAL_FAILURE(begin(std::chrono::milliseconds{60'000}));
  EXPECT_EQ(client->put(key_of("other"), bytes_of("value")).status, Status::kOk);
  ASSERT_EQ(loop->spawn(put_and_get(*loop, *client, value, 100, soon())), Status::kOk);
  const Deadline full = Deadline::after(std::chrono::milliseconds{500});
  ASSERT_EQ(loop->run_until([&] { return full.passed(); }, soon()), Status::kOk);
  EXPECT_EQ(loop->waiting(), 1u);
  loop->drop_all();
  std::array<std::byte, 64> out;
  EXPECT_EQ(client->get(key_of("other"), out).status, Status::kOk);
}

}  // namespace
}  // namespace verbena::coroutine
