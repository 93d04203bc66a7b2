// Setting a connection up on a device, from the NIC to both of its ends, over a libibverbs and a librdmacm that are not
// there: whichever call fails, everything is released.
#include "../link/fake_cm.hpp"
#include "../nic/verbs/fake_library.hpp"
#include "base/error.hpp"
#include "channel/bounce.hpp"
#include "channel/connection.hpp"
#include "engine/loop.hpp"
#include "link/cm/manager.hpp"
#include "nic/buffer_pool.hpp"
#include "nic/verbs/verbs_nic.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>

namespace verbena::channel {
namespace {

using nic::verbs::FakeDevice;
using nic::verbs::FakeLibrary;
using nic::verbs::FakePort;

[[nodiscard]] Deadline patience() { return Deadline::after(std::chrono::seconds{30}); }

class Deaf final : public Handler {
 public:
  void on_message(Connection&, std::span<const std::byte>) noexcept override {}
  void on_complete(Connection&, const Completion&) noexcept override {}
  void on_end(Connection&, Status) noexcept override {}
};

/// A process with a NIC, a loop, and a connection that is not attached: nothing is posted, because nothing would come.
struct End {
  std::unique_ptr<nic::Nic> nic;
  nic::Pd pd;
  std::unique_ptr<link::cm::Manager> manager;
  std::unique_ptr<engine::CompletionLoop> loop;
  std::optional<nic::BufferPool> buffers;
  Bounce bounce;
  Deaf handler;
  std::unique_ptr<Connection> connection;

  [[nodiscard]] Result<std::unique_ptr<Connection>> make(const Options& options) {
    return Connection::create(*loop, {.pd = pd.get(), .buffers = &*buffers, .bounce = &bounce}, options, handler);
  }
  [[nodiscard]] Result<void> open(const FakeLibrary& library, const link::cm::FakeCm& cm) {
    VERBENA_ASSIGN(nic, nic::verbs::open_with(library.table(), {}));
    VERBENA_ASSIGN(ibv_pd * made, nic->alloc_pd());
    pd = nic::Pd(*nic, made);
    VERBENA_ASSIGN(manager, link::cm::start_with(cm.table(), *nic));
    VERBENA_ASSIGN(loop, engine::CompletionLoop::create(*nic, {.max_connections = 2}));
    buffers.emplace(*nic, pd.get());
    VERBENA_TRY(bounce.open(*buffers, {}));
    VERBENA_ASSIGN(connection, make({.depth = 4, .lease_bytes = 4096}));
    return {};
  }
  [[nodiscard]] Result<void> dial(std::uint16_t port) {
    VERBENA_ASSIGN(const link::Endpoint local, connection->describe({}));
    VERBENA_ASSIGN(auto handshake, manager->dial("10.0.0.1", port, local, patience()));
    VERBENA_TRY(connection->dialed(std::move(handshake)));
    return connection->connect(patience());
  }
  [[nodiscard]] Result<void> welcome(link::Listener& listener) {
    VERBENA_ASSIGN(auto handshake, listener.next(patience()));
    VERBENA_TRY(connection->answer(std::move(handshake), {}));
    return connection->connect(patience());
  }
};

class SetUpTest : public testing::Test {
 protected:
  SetUpTest() {
    library_.devices.push_back(
        std::make_unique<FakeDevice>("fake_0", std::vector<FakePort>{{.gids = {nic::verbs::ipv4_gid(3, 1)}}}));
  }
  [[nodiscard]] Result<void> set_up() {
    End server;
    VERBENA_TRY(server.open(library_, cm_));
    VERBENA_ASSIGN(auto listener, server.manager->listen({.address = "10.0.0.1"}));
    End client;
    VERBENA_TRY(client.open(library_, cm_));
    // Whoever fails lets go of the connection, as its owner does, which ends the other's wait.
    const auto give_up = [&](const Result<void>& done, End& end) {
      if (done) return;
      end.connection.reset();
      listener->close();
    };
    auto dialing = std::async(std::launch::async, [&, port = listener->port()] {
      Result<void> dialed = client.dial(port);
      give_up(dialed, client);
      return dialed;
    });
    const Result<void> served = server.welcome(*listener);
    give_up(served, server);
    const Result<void> dialed = dialing.get();
    return dialed ? served : dialed;
  }

  FakeLibrary library_;
  link::cm::FakeCm cm_;
};

TEST_F(SetUpTest, WhicheverVerbsCallFailsEverythingIsReleased) {
  ASSERT_OK(set_up());
  EXPECT_EQ(library_.live(), 0U);
  EXPECT_EQ(cm_.live(), 0U);
  const int calls = library_.acquires;
  EXPECT_GT(calls, 30);
  int failed = 0;
  for (int n = 1; n <= calls; ++n) {
    library_.acquires = 0;
    library_.fail_acquire = n;
    const auto done = set_up();
    // What is only probed for, such as a thread domain, may fail.
    failed += done ? 0 : 1;
    if (!done) {
      EXPECT_STRNE(done.error().text(), "") << n;
    }
    ASSERT_EQ(library_.live(), 0U) << n;
    ASSERT_EQ(cm_.live(), 0U) << n;
  }
  EXPECT_GT(failed, calls / 2);
}

TEST_F(SetUpTest, WhicheverCmCallFailsEverythingIsReleased) {
  ASSERT_OK(set_up());
  const int calls = cm_.calls;
  for (int n = 1; n <= calls; ++n) {
    cm_.calls = 0;
    cm_.fail_at = n;
    EXPECT_FALSE(set_up().has_value()) << n;
    ASSERT_EQ(library_.live(), 0U) << n;
    ASSERT_EQ(cm_.live(), 0U) << n;
  }
}

TEST_F(SetUpTest, BulkDataLandsInAnyOrderAndNothingElseDoes) {
  End end;
  ASSERT_OK(end.open(library_, cm_));
  EXPECT_NE(library_.last_access & IBV_ACCESS_RELAXED_ORDERING, 0U) << "the lease";
  auto made = end.make({.depth = 4});
  ASSERT_OK(made);
  EXPECT_STATUS(end.make({.depth = 4}), Status::kLimit) << "two connections a loop";
  made->reset();
  // Fresh slabs, because a buffer may come out of one that is registered already.
  end.connection.reset();
  end.bounce = {};
  ASSERT_OK(end.bounce.open(*end.buffers, {}));
  EXPECT_EQ(library_.last_access & IBV_ACCESS_RELAXED_ORDERING, 0U) << "messages and chunks";
}

TEST_F(SetUpTest, ADeviceWithoutAtomicsSaysSoBeforeAnythingIsPosted) {
  library_.devices.front()->attr.atomic_cap = IBV_ATOMIC_NONE;
  End end;
  ASSERT_OK(end.open(library_, cm_));
  auto made = end.make({.depth = 4});
  ASSERT_OK(made);
  Connection& connection = **made;
  const auto local = connection.describe({});
  ASSERT_OK(local);
  ASSERT_OK(connection.meet(*local));
  ASSERT_OK(connection.connect(patience()));
  ASSERT_OK(connection.import_window({.address = 4096, .length = 64, .rkey = 9, .access = IBV_ACCESS_REMOTE_ATOMIC},
                                     patience()));
  std::uint64_t old = 5;
  const RemoteSpan word{.address = 4096, .length = 8, .rkey = 9};
  EXPECT_EQ(connection.change({.compare_add = 1}, word, old, patience()), Status::kUnsupported);
  EXPECT_EQ(connection.start_change({.compare_add = 1}, word, 1), Status::kUnsupported);
  EXPECT_EQ(old, 5U);
  EXPECT_EQ(connection.failure(), Status::kOk);
}

TEST_F(SetUpTest, ADeviceWithShortQueuesSaysWhatDoesNotFit) {
  End end;
  ASSERT_OK(end.open(library_, cm_));
  // Of each 4096 are allowed; a queue of the device has so many for both.
  const auto made = end.make({.depth = 1024, .max_reads = 2048});
  ASSERT_TRUE(test::has_status(made, Status::kLimit));
  EXPECT_NE(std::string(made.error().text()).find("depth 1024 and max_reads 2048 take 4"), std::string::npos)
      << made.error().text();
  EXPECT_NE(std::string(made.error().text()).find("fake_0 has 4096"), std::string::npos) << made.error().text();
}

}  // namespace
}  // namespace verbena::channel
