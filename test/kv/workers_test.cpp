// Workers beside each other: one that is held up delays its own keys and nobody else; clients and keys spread over all.
#include "churn.hpp"
#include "kv/wire.hpp"
#include "model.hpp"
#include "process.hpp"

#include <pthread.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

/// Where a worker stands still: in the midst of a request to put `key`, until it is let go. It has told nobody, holds
/// no lock, and is in no system call of its own: as if its thread had lost its core.
class Gate {
 public:
  /// The next request to put this key is where its worker stops.
  void arm(std::string key) {
    const std::lock_guard lock(mutex_);
    key_ = std::move(key);
  }
  /// The same for all workers that hear a client's goodbye.
  void hold_goodbyes() {
    const std::lock_guard lock(mutex_);
    holds_goodbyes_ = true;
    goodbyes_held_ = 0;
  }
  /// Whether so many workers stand there, within 20 s.
  [[nodiscard]] bool holds_goodbyes(unsigned count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 20s, [&] { return goodbyes_held_ == count; });
  }
  /// Whether a worker stands there, within 20 s.
  [[nodiscard]] bool holds() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 20s, [&] { return is_holding_; });
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      key_.clear();
      holds_goodbyes_ = false;
    }
    changed_.notify_all();
  }
  /// Called by workers.
  void pass(const wire::Request& request) {
    std::unique_lock lock(mutex_);
    if (request.head.op == wire::Op::kGoodbye && holds_goodbyes_) {
      ++goodbyes_held_;
      changed_.notify_all();
      changed_.wait_for(lock, 60s, [&] { return !holds_goodbyes_; });
    }
    if (key_.empty() || request.head.op != wire::Op::kPut || !std::ranges::equal(request.key, key_of(key_))) return;
    is_holding_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, 60s, [&] { return key_.empty(); });  // Bounded, should a test fail while it holds.
    is_holding_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string key_;
  bool is_holding_ = false;
  bool holds_goodbyes_ = false;
  unsigned goodbyes_held_ = 0;
};

Gate& gate() {
  static Gate it;
  return it;
}

}  // namespace

// Every worker decodes each of its requests; the linker puts this in between.
Status real_decode(std::span<const std::byte> body, wire::Request& request) noexcept asm("__real_" VERBENA_DECODE);
Status gated_decode(std::span<const std::byte> body, wire::Request& request) noexcept asm("__wrap_" VERBENA_DECODE);
Status gated_decode(std::span<const std::byte> body, wire::Request& request) noexcept {
  const Status status = real_decode(body, request);
  if (status == Status::kOk) gate().pass(request);
  return status;
}

// Locks are seen likewise, of each thread its own.
thread_local unsigned locks_taken = 0;
int real_lock(pthread_mutex_t* mutex) noexcept asm("__real_pthread_mutex_lock");
int counted_lock(pthread_mutex_t* mutex) noexcept asm("__wrap_pthread_mutex_lock");
int counted_lock(pthread_mutex_t* mutex) noexcept {
  ++locks_taken;
  return real_lock(mutex);
}

namespace {

class KvWorkers : public testing::Test {
 protected:
  void begin(unsigned workers) {
    ServerOptions options = small_server();
    options.workers = workers;
    server_ = start(options);
    ASSERT_TRUE(server_);
    client_ = connect(client_options(*server_));
    ASSERT_TRUE(client_);
  }
  void TearDown() override { gate().open(); }

  [[nodiscard]] std::uint64_t erases_at(unsigned worker) const { return server_->worker_statistics(worker).erases; }
  /// The worker that has a key, found by asking: only the server knows its hash's seed. Erases it.
  [[nodiscard]] unsigned worker_of(const std::string& key) {
    std::vector<std::uint64_t> before;
    for (unsigned i = 0; i < workers(); ++i) before.push_back(erases_at(i));
    (void)client_->erase(key_of(key));
    for (unsigned i = 0; i < workers(); ++i)
      if (erases_at(i) != before[i]) return i;
    ADD_FAILURE() << "nobody was asked for " << key;
    return 0;
  }
  [[nodiscard]] unsigned workers() const { return static_cast<unsigned>(server_->statistics().workers); }
  /// `count` keys of each worker.
  [[nodiscard]] std::vector<std::vector<std::string>> keys_of_each(std::size_t count) {
    std::vector<std::vector<std::string>> keys(workers());
    const auto is_short = [&](const auto& of) { return of.size() < count; };
    for (int i = 0; i < 10'000 && std::ranges::any_of(keys, is_short); ++i) {
      const std::string key = "key" + std::to_string(i);
      auto& mine = keys[worker_of(key)];
      if (is_short(mine)) mine.push_back(key);
    }
    return keys;
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

/// Everything that a client does, with one key; a large value's key is another.
void expect_service(Client& client, const std::string& key, const std::string& large_key) {
  std::string out(30'000, '\0');
  const auto room = std::as_writable_bytes(std::span(out));
  const Outcome put = client.put(key_of(key), bytes_of("value"));
  ASSERT_EQ(put.status, Status::kOk);
  ASSERT_EQ(client.get(key_of(key), room).length, 5u);
  ASSERT_EQ(client.cas(key_of(key), put.version, bytes_of("other value")).status, Status::kOk);
  ASSERT_EQ(client.get(key_of(key), room).length, 11u);
  ASSERT_EQ(client.put(key_of(large_key), bytes_of(std::string(20'000, 'l'))).status, Status::kOk);
  ASSERT_EQ(client.get(key_of(large_key), room).length, 20'000u);
  ASSERT_EQ(client.erase(key_of(large_key)).status, Status::kOk);
  ASSERT_EQ(client.get(key_of(large_key), room).status, Status::kNotFound);
}

TEST_F(KvWorkers, OneHeldUpDelaysItsOwnKeysAlone) {
  constexpr unsigned kWorkers = 3;
  begin(kWorkers);
  const auto keys = keys_of_each(3);
  const auto holder = connect(client_options(*server_));
  ASSERT_TRUE(holder);
  for (unsigned held = 0; held < kWorkers; ++held) {
    SCOPED_TRACE(held);
    ASSERT_EQ(client_->put(key_of(keys[held][2]), bytes_of("read all along")).status, Status::kOk);
    gate().arm(keys[held][0]);
    ASSERT_EQ(holder->start_put(key_of(keys[held][0]), bytes_of("held"), 1), Status::kOk);
    ASSERT_TRUE(gate().holds());

    // The others' keys: of the client that waits for the held one, of another, and of a new one.
    const auto newcomer = connect(client_options(*server_));
    ASSERT_TRUE(newcomer);
    for (unsigned other = 0; other < kWorkers; ++other) {
      if (other == held) continue;
      for (Client* client : {holder.get(), client_.get(), newcomer.get()})
        expect_service(*client, keys[other][1], keys[other][2]);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(holder->in_flight(), 1u);
    std::array<Completion, 4> done;
    EXPECT_EQ(holder->poll(done), 0u) << "it is held";

    // Its keys can be read, where a READ needs nobody else.
    if (test::is_soft_under_test()) {
      std::string out(100, '\0');
      EXPECT_EQ(client_->get(key_of(keys[held][2]), std::as_writable_bytes(std::span(out))).length, 14u);
      EXPECT_EQ(newcomer->get(key_of(keys[held][2]), std::as_writable_bytes(std::span(out))).length, 14u);
    }

    // Pipelined, all at once: what is not held completes.
    for (unsigned worker = 0; worker < kWorkers; ++worker)
      ASSERT_EQ(client_->start_put(key_of(keys[worker][1]), bytes_of("pipelined"), worker), Status::kOk);
    std::size_t completed = 0;
    while (completed < kWorkers - 1) {
      const std::size_t more = client_->wait(done, Deadline::after(20s));
      ASSERT_NE(more, 0u);
      for (std::size_t i = 0; i < more; ++i) {
        EXPECT_EQ(done[i].outcome.status, Status::kOk);
        EXPECT_NE(done[i].cookie, held);
      }
      completed += more;
    }
    EXPECT_EQ(client_->in_flight(), 1u);

    // Its own keys wait, as long as the caller likes; the connection stays, and so do the statistics.
    EXPECT_EQ(newcomer->put(key_of(keys[held][2]), bytes_of("late"), Deadline::after(20ms)).status, Status::kTimedOut);
    EXPECT_EQ(newcomer->connection_error().status(), Status::kOk);
    const ServerStatistics now = server_->statistics();
    EXPECT_EQ(now.workers, kWorkers);
    EXPECT_GE(now.clients, 3u) << "and those who left lately";
    if (held != 0) {
      EXPECT_TRUE(client_->server_statistics(Deadline::after(20s))) << "worker 0 tells them";
    }

    gate().open();
    ASSERT_EQ(holder->wait(done, Deadline::after(20s)), 1u);
    EXPECT_EQ(done[0].outcome.status, Status::kOk);
    ASSERT_EQ(client_->wait(done, Deadline::after(20s)), 1u);
    EXPECT_EQ(done[0].cookie, held);
    expect_service(*newcomer, keys[held][1], keys[held][2]);
    if (HasFatalFailure()) return;
  }
}

TEST_F(KvWorkers, StopsOnceOneThatWasHeldUpIsThere) {
  begin(2);
  const auto keys = keys_of_each(1);
  gate().arm(keys[1][0]);
  ASSERT_EQ(client_->start_put(key_of(keys[1][0]), bytes_of("held"), 1), Status::kOk);
  ASSERT_TRUE(gate().holds());
  std::thread stopping([&] { server_->stop(); });
  // The other one has stopped, or is about to, without it.
  Outcome outcome;
  EXPECT_TRUE(eventually([&] {
    outcome = client_->put(key_of(keys[0][0]), bytes_of("v"), Deadline::after(10s));
    return outcome.status != Status::kOk;
  }));
  EXPECT_EQ(outcome.status, Status::kClosed);
  gate().open();
  stopping.join();
}

TEST_F(KvWorkers, KeysAndClientsSpreadOverAll) {
  constexpr unsigned kWorkers = 4;
  constexpr std::uint64_t kKeys = 4000;
  begin(kWorkers);
  const auto other = connect(client_options(*server_));
  ASSERT_TRUE(other);
  for (std::uint64_t i = 0; i < kKeys; ++i)
    ASSERT_EQ((i % 2 == 0 ? client_ : other)->put(key_of("key" + std::to_string(i)), bytes_of("value")).status,
              Status::kOk);
  std::uint64_t puts = 0, items = 0;
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    const ServerStatistics its = server_->worker_statistics(worker);
    EXPECT_EQ(its.sessions, 2u);
    // A binomial: its deviation is 27, and this is nine of them.
    EXPECT_NEAR(static_cast<double>(its.puts), static_cast<double>(kKeys) / kWorkers, 250) << worker;
    EXPECT_EQ(its.of(OperationKind::kPut).requests, its.puts);
    puts += its.puts;
    items += its.items;
  }
  EXPECT_EQ(puts, kKeys);
  EXPECT_TRUE(items == kKeys || eventually([&] { return server_->statistics().items == kKeys; })) << items;
  EXPECT_EQ(server_->statistics().puts, kKeys);
  EXPECT_EQ(server_->statistics().sessions, 2 * kWorkers);
}

// A client that leaves tells all workers, and waits for none of them: all have heard of it, though each is held up in
// just that and answers nobody.
TEST_F(KvWorkers, AllHearOfAClientThatLeavesAtOnce) {
  constexpr unsigned kWorkers = 32;
  ServerOptions options = small_server();
  options.workers = kWorkers;
  options.max_value_bytes = std::size_t{512} << 10;
  server_ = start(options);
  ASSERT_TRUE(server_);
  auto leaver = connect(client_options(*server_));
  ASSERT_TRUE(leaver);
  // A worker that has not taken the client in yet has no room for what it says.
  ASSERT_TRUE(eventually([&] { return server_->statistics().sessions == kWorkers; }));
  gate().hold_goodbyes();
  leaver.reset();
  EXPECT_TRUE(gate().holds_goodbyes(kWorkers));
  gate().open();
  EXPECT_TRUE(eventually([&] { return server_->statistics().clients == 0; }));
}

// A worker does the same for a client that asks, in the thread that serves all the others.
TEST_F(KvWorkers, StatisticsTakeNoLock) {
  begin(2);
  std::mutex mutex;
  unsigned before = locks_taken;
  (void)std::lock_guard(mutex);
  ASSERT_EQ(locks_taken, before + 1) << "locks are not seen";
  before = locks_taken;
  const ServerStatistics all = server_->statistics();
  const ServerStatistics some = server_->worker_statistics(1);
  EXPECT_EQ(locks_taken, before);
  EXPECT_EQ(all.clients, 1u);
  EXPECT_EQ(some.workers, 1u);
}

// The same lives as in test/sealed/growth_test.cpp, where every byte of heap is counted: here for the sanitizers.
TEST(KvChurn, LeavesNothingBehind) {
  VERBENA_SKIP_ON_A_DEVICE("a thousand registrations take long there");
  const auto server = start(churn_server());
  ASSERT_TRUE(server);
  const Churn churn(*server);
  churn.live(30, 1);
  churn.clear();
  const std::size_t descriptors = test::open_descriptors();
  const std::size_t mappings = test::memfd_mappings();
  churn.live(60, 2);
  churn.clear();
  EXPECT_TRUE(eventually([&] { return test::open_descriptors() <= descriptors; }))
      << test::open_descriptors() << " now, " << descriptors << " before";
  EXPECT_TRUE(eventually([&] { return test::memfd_mappings() <= mappings; }))
      << test::memfd_mappings() << " now, " << mappings << " before";
}

}  // namespace
}  // namespace verbena::kv
