// Setting a connection up on a device, from the NIC to both ends of a channel and a link, over a libibverbs and a
// librdmacm that are not there: whichever call fails, everything is released.
#include "../link/fake_cm.hpp"
#include "../nic/verbs/fake_library.hpp"
#include "base/error.hpp"
#include "engine/engine.hpp"
#include "link/cm/manager.hpp"
#include "message/message.hpp"
#include "nic/verbs/verbs_nic.hpp"
#include "remote/remote.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

namespace verbena::message {
namespace {

using nic::verbs::FakeDevice;
using nic::verbs::FakeLibrary;
using nic::verbs::FakePort;

[[nodiscard]] Deadline soon() { return Deadline::after(std::chrono::seconds{2}); }

class Deaf final : public Handler {
 public:
  void on_message(Channel&, std::span<const std::byte>) noexcept override {}
  void on_fragment(Channel&, const Fragment&) noexcept override {}
  void on_complete(Channel&, std::uint64_t, Status) noexcept override {}
  void on_failure(Channel&, Status) noexcept override {}
};

/// A process with a NIC, a loop, and a channel that is not attached: nothing is posted, because nothing would come.
struct End {
  std::unique_ptr<nic::Nic> nic;
  nic::Pd pd;
  std::unique_ptr<link::cm::Manager> manager;
  std::unique_ptr<engine::CompletionLoop> loop;
  Deaf handler;
  std::unique_ptr<Channel> channel;
  std::unique_ptr<remote::Link> link;

  [[nodiscard]] Result<void> open(const FakeLibrary& library, const link::cm::FakeCm& cm) {
    VERBENA_ASSIGN(nic, nic::verbs::open_with(library.table(), {}));
    VERBENA_ASSIGN(ibv_pd * made, nic->alloc_pd());
    pd = nic::Pd(*nic, made);
    VERBENA_ASSIGN(manager, link::cm::start_with(cm.table(), *nic));
    VERBENA_ASSIGN(loop, engine::CompletionLoop::create(*nic, {.max_connections = 2}));
    VERBENA_ASSIGN(channel, Channel::create(*loop, pd.get(),
                                            {.depth = 4, .lease_bytes = 4096, .attach = Attach::kByCaller}, handler));
    VERBENA_ASSIGN(link, remote::Link::create(*loop, pd.get(), {.bounce_bytes = 64, .bounce_buffers = 1}));
    return {};
  }
  [[nodiscard]] Result<void> dial(std::uint16_t port) {
    VERBENA_ASSIGN(const link::Endpoint local, channel->local_endpoint({}));
    VERBENA_ASSIGN(auto dialed, manager->dial("10.0.0.1", port, local, soon()));
    VERBENA_TRY(channel->connect(local, dialed.remote(), soon(), dialed.how()));
    VERBENA_ASSIGN(link::Lifeline lifeline, dialed.finish(soon()));
    channel->keep(std::move(lifeline));
    return channel->open_lease(soon());
  }
  [[nodiscard]] Result<void> welcome(link::Listener& listener) {
    VERBENA_ASSIGN(auto incoming, listener.next(Deadline::after(std::chrono::milliseconds{200})));
    VERBENA_ASSIGN(const link::Endpoint local, channel->local_endpoint({}));
    VERBENA_TRY(channel->connect(local, incoming.remote(), soon(), incoming.how()));
    VERBENA_TRY(incoming.answer(local, soon()));
    VERBENA_ASSIGN(link::Lifeline lifeline, incoming.finish(soon()));
    channel->keep(std::move(lifeline));
    return channel->open_lease(soon());
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
    auto dialing = std::async(std::launch::async, [&, port = listener->port()] { return client.dial(port); });
    const Result<void> served = server.welcome(*listener);
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
  EXPECT_EQ(library_.last_access & IBV_ACCESS_RELAXED_ORDERING, 0U) << "bounce buffers";
  auto channel = Channel::create(*end.loop, end.pd.get(), {.depth = 4, .lease_bytes = 4096}, end.handler);
  EXPECT_STATUS(channel, Status::kLimit) << "two connections a loop";
  end.link.reset();
  channel = Channel::create(*end.loop, end.pd.get(), {.depth = 4, .lease_bytes = 4096}, end.handler);
  ASSERT_OK(channel);
  EXPECT_NE(library_.last_access & IBV_ACCESS_RELAXED_ORDERING, 0U) << "the lease";
  channel->reset();
  channel = Channel::create(*end.loop, end.pd.get(), {.depth = 4}, end.handler);
  ASSERT_OK(channel);
  EXPECT_EQ(library_.last_access & IBV_ACCESS_RELAXED_ORDERING, 0U) << "messages";
}

TEST_F(SetUpTest, ADeviceWithoutAtomicsSaysSoBeforeAnythingIsPosted) {
  library_.devices.front()->attr.atomic_cap = IBV_ATOMIC_NONE;
  End end;
  ASSERT_OK(end.open(library_, cm_));
  const auto local = end.link->local_endpoint({});
  ASSERT_OK(local);
  ASSERT_OK(end.link->connect(*local, *local, soon()));
  ASSERT_OK(
      end.link->import_window({.address = 4096, .length = 64, .rkey = 9, .access = IBV_ACCESS_REMOTE_ATOMIC}, soon()));
  std::uint64_t old = 5;
  EXPECT_EQ(end.link->fetch_add({.address = 4096, .rkey = 9}, 1, old, soon()), Status::kUnsupported);
  EXPECT_EQ(end.link->compare_swap({.address = 4096, .rkey = 9}, 1, 2, old, soon()), Status::kUnsupported);
  EXPECT_EQ(old, 5U);
  EXPECT_TRUE(end.link->alive());
}

TEST_F(SetUpTest, ADeviceWithShortQueuesSaysWhatDoesNotFit) {
  End end;
  ASSERT_OK(end.open(library_, cm_));
  // Of each 4096 are allowed; a queue of the device has so many for both.
  const auto channel = Channel::create(*end.loop, end.pd.get(), {.depth = 1024, .max_reads = 2048}, end.handler);
  ASSERT_TRUE(test::has_status(channel, Status::kLimit));
  EXPECT_NE(std::string(channel.error().text()).find("depth 1024 and max_reads 2048 take 4"), std::string::npos)
      << channel.error().text();
  EXPECT_NE(std::string(channel.error().text()).find("fake_0 has 4096"), std::string::npos) << channel.error().text();
}

}  // namespace
}  // namespace verbena::message
