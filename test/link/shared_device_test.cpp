// RDMA devices that are opened once a process, over a librdmacm and a libibverbs that are not there.
#include "../nic/verbs/fake_library.hpp"
#include "fake_cm.hpp"
#include "key_file.hpp"
#include "link/cm/manager.hpp"
#include "link/fabric.hpp"
#include "nic/verbs/verbs_nic.hpp"
#include "result.hpp"
#include "support.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <future>
#include <mutex>
#include <set>

namespace verbena::link::cm {
namespace {

using namespace test;
using nic::verbs::FakePort;
using nic::verbs::ipv4_gid;

/// A device with two ports, of which the first has two rows that are equally good but for their place.
class SharedDevices : public testing::Test {
 protected:
  SharedDevices() {
    add(library_.devices, "fake_0", {{.gids = {ipv4_gid(3, 1), ipv4_gid(5, 2)}}, {.gids = {ipv4_gid(1, 3)}}});
    add(library_.devices, "fake_1", {{.gids = {ipv4_gid(0, 4)}}});
    alloc_pd_ = verbs_.alloc_pd;
    verbs_.alloc_pd = [](ibv_context* context) {
      if (context != failed_) return alloc_pd_(context);
      errno = failed_errno_;
      return static_cast<ibv_pd*>(nullptr);
    };
  }
  ~SharedDevices() override {
    EXPECT_EQ(cm_.live(), 0U);
    EXPECT_EQ(library_.live(), 0U);
    failed_ = nullptr;
  }
  static void add(auto& devices, const char* name, std::vector<FakePort> ports) {
    devices.push_back(std::make_unique<nic::verbs::FakeDevice>(name, std::move(ports)));
  }
  [[nodiscard]] NicMakers makers() {
    return {.open_soft = nic::open_soft,
            .open_verbs =
                [this](const nic::VerbsOptions& options) {
                  // The fake has one list of devices for all callers.
                  const std::lock_guard lock(mutex_);
                  ++opened_;
                  return nic::verbs::open_with(verbs_, options);
                },
            .start_cm = [this](nic::Nic& nic) { return start_with(cm_.table(), nic); }};
  }
  [[nodiscard]] Result<std::unique_ptr<Fabric>> open(const std::string& device, Bootstrap bootstrap = Bootstrap::kCm,
                                                     std::optional<std::uint32_t> row = {}) {
    return open_in(registry_, device, bootstrap, row);
  }
  [[nodiscard]] static Result<std::unique_ptr<Fabric>> open_in(NicRegistry& registry, const std::string& device,
                                                               Bootstrap bootstrap, std::optional<std::uint32_t> row) {
    return Fabric::open({.transport = {.bootstrap = bootstrap, .device = device, .gid_index = row}}, generous(),
                        registry);
  }
  [[nodiscard]] std::size_t open_devices() const { return library_.live("context"); }

  nic::verbs::FakeLibrary library_;
  nic::verbs::VerbsLibrary verbs_ = library_.table();
  // Commands of one context can be made to fail.
  static inline ibv_pd* (*alloc_pd_)(ibv_context*) = nullptr;
  static inline const ibv_context* failed_ = nullptr;
  static inline int failed_errno_ = 0;
  FakeCm cm_;
  std::mutex mutex_;
  int opened_ = 0;
  NicRegistry registry_{makers()};
};

TEST_F(SharedDevices, OneHoweverItIsAskedFor) {
  const auto named = open("fake_0");
  ASSERT_OK(named);
  const nic::Nic* const nic = &(*named)->nic();
  for (int times = 0; times < 2; ++times) {
    for (const auto& other : {open("fake_0:1"), open("fake_0", Bootstrap::kSocket), open("fake_0", Bootstrap::kCm, 3),
                              open("fake_0:1", Bootstrap::kSocket, 3)}) {
      ASSERT_OK(other);
      EXPECT_EQ(&(*other)->nic(), nic);
    }
    // As an automatic choice asks: for any device, and for that of an address.
    const auto any = registry_.device({});
    ASSERT_OK(any);
    EXPECT_EQ(any->nic, (*named)->shared_nic());
    const auto of_address =
        registry_.device({.device = "fake_0", .port = 1, .gid = {.index = {}, .address = ipv4_gid(3, 1).gid}});
    ASSERT_OK(of_address);
    EXPECT_EQ(of_address->nic, (*named)->shared_nic());
  }
  EXPECT_EQ(open_devices(), 1U);
}

TEST_F(SharedDevices, OthersForAnotherDevicePortOrRow) {
  const auto first = open("fake_0"), port = open("fake_0:2"), row = open("fake_0", Bootstrap::kCm, 5),
             device = open("fake_1");
  std::set<const nic::Nic*> nics;
  for (const auto* one : {&first, &port, &row, &device}) {
    ASSERT_OK(*one);
    nics.insert(&(**one)->nic());
  }
  EXPECT_EQ(nics.size(), 4U);
  EXPECT_EQ(open_devices(), 4U);
}

TEST_F(SharedDevices, AskedForAgainItIsNotOpenedAgain) {
  const auto first = open("fake_0");
  ASSERT_OK(first);
  const int opened = opened_;
  EXPECT_OK(open("fake_0"));
  EXPECT_OK(open("fake_0", Bootstrap::kSocket));
  EXPECT_EQ(opened_, opened);
}

/// The text is for who reads it: why his row was taken, not another user's.
TEST_F(SharedDevices, EachHasHisOwnReason) {
  std::set<std::string> texts;
  for (const std::optional<std::uint32_t> first_row :
       {std::optional<std::uint32_t>(), std::optional<std::uint32_t>(3)}) {
    const auto first = open("fake_0", Bootstrap::kCm, first_row);
    ASSERT_OK(first);
    for (const std::optional<std::uint32_t> row : {std::optional<std::uint32_t>(), std::optional<std::uint32_t>(3)}) {
      NicRegistry alone(makers());
      const auto shared = open("fake_0", Bootstrap::kCm, row), own = open_in(alone, "fake_0", Bootstrap::kCm, row);
      ASSERT_OK(shared);
      ASSERT_OK(own);
      EXPECT_EQ(&(*shared)->nic(), &(*first)->nic());
      EXPECT_EQ((*shared)->reason(), (*own)->reason());
      texts.insert((*shared)->reason());
    }
  }
  EXPECT_EQ(texts.size(), 2U);
}

TEST_F(SharedDevices, TheLastUserClosesIt) {
  auto first = open("fake_0"), second = open("fake_0:1", Bootstrap::kSocket);
  ASSERT_OK(first);
  ASSERT_OK(second);
  first->reset();
  EXPECT_EQ(open_devices(), 1U);
  EXPECT_NE(cm_.live(), 0U) << "RDMA CM stays with the NIC";
  second->reset();
  EXPECT_EQ(open_devices(), 0U);
  EXPECT_EQ(cm_.live(), 0U);
  EXPECT_OK(open("fake_0"));
}

TEST_F(SharedDevices, ADeviceThatFailedIsOpenedAgain) {
  const auto first = open("fake_0"), other = open("fake_0:1");
  ASSERT_OK(first);
  ASSERT_OK(other);
  failed_ = (*first)->nic().context();
  failed_errno_ = EIO;
  const auto second = open("fake_0");
  ASSERT_OK(second);
  EXPECT_NE(&(*second)->nic(), &(*first)->nic());
  // From now on that one, for all.
  for (const auto& third : {open("fake_0"), open("fake_0", Bootstrap::kSocket, 3)}) {
    ASSERT_OK(third);
    EXPECT_EQ(&(*third)->nic(), &(*second)->nic());
  }
}

TEST_F(SharedDevices, ADeviceAtALimitIsNoFailedOne) {
  const auto first = open("fake_0");
  ASSERT_OK(first);
  failed_ = (*first)->nic().context();
  failed_errno_ = ENOMEM;
  const auto second = open("fake_0");
  ASSERT_OK(second);
  EXPECT_EQ(&(*second)->nic(), &(*first)->nic());
}

TEST_F(SharedDevices, ThreadsThatOpenAtTheSameTimeGetOne) {
  const std::vector<std::pair<std::string, std::optional<std::uint32_t>>> asked = {
      {"fake_0", {}}, {"fake_0:1", {}}, {"fake_0", 3}, {"fake_0:1", 3}, {"fake_0", {}}, {"fake_0", 3}};
  for (int round = 0; round < 20; ++round) {
    std::barrier together(static_cast<std::ptrdiff_t>(asked.size()));
    std::vector<std::future<const nic::Nic*>> threads;
    for (const auto& [device, row] : asked) {
      threads.push_back(std::async(std::launch::async, [&, device, row]() -> const nic::Nic* {
        together.arrive_and_wait();
        const auto fabric = open(device, Bootstrap::kCm, row);
        const nic::Nic* const seen = fabric ? &(*fabric)->nic() : nullptr;
        together.arrive_and_wait();
        return seen;
      }));
    }
    std::set<const nic::Nic*> seen;
    for (auto& thread : threads) seen.insert(thread.get());
    EXPECT_EQ(seen.size(), 1U);
    EXPECT_FALSE(seen.contains(nullptr));
    EXPECT_EQ(open_devices(), 0U);
  }
}

Endpoint endpoint_of(std::uint64_t seed) {
  Endpoint endpoint = make_endpoint(seed, 8);
  endpoint.nic = nic::Kind::kVerbs;
  endpoint.qp.network = nic::Network::kRoceV2Ipv4;
  return endpoint;
}

TEST_F(SharedDevices, BothBootstrapsWorkOverOneNic) {
  auto by_cm = open("fake_0"), by_socket = open("fake_0", Bootstrap::kSocket);
  ASSERT_OK(by_cm);
  ASSERT_OK(by_socket);
  EXPECT_EQ(&(*by_cm)->nic(), &(*by_socket)->nic());
  EXPECT_EQ((*by_cm)->address(), "10.0.0.1");
  EXPECT_EQ((*by_socket)->address(), "127.0.0.1");
  for (const auto* fabric : {&*by_cm, &*by_socket}) {
    const auto listener = (*fabric)->listen({});
    ASSERT_OK(listener);
    auto dialing = std::async(std::launch::async, [&]() -> Result<Lifeline> {
      // Through a use of its own.
      auto dialer = open("fake_0:1", (*fabric)->bootstrap());
      if (!dialer) return std::unexpected(dialer.error());
      auto dialed = (*dialer)->dial((*listener)->port(), endpoint_of(1), generous());
      if (!dialed) return std::unexpected(dialed.error());
      EXPECT_EQ((*dialed)->how().route != nullptr, (*fabric)->bootstrap() == Bootstrap::kCm);
      return (*dialed)->finish(generous());
    });
    const auto incoming = (*listener)->next(generous());
    ASSERT_OK(incoming);
    ASSERT_OK((*incoming)->answer(endpoint_of(2), generous()));
    EXPECT_OK((*incoming)->finish(generous()));
    EXPECT_OK(dialing.get());
  }
}

/// RDMA CM chooses the device, and has no room for a challenge: with a key the handshake goes over a socket, and the
/// same program runs unchanged.
TEST_F(SharedDevices, AKeysHandshakeGoesOverASocket) {
  if (!verbena::test::has_keys()) GTEST_SKIP() << "this build has no keys";
  const verbena::test::KeyFile file;
  const std::string& path = file.path();
  const auto open_with = [&](Role role, const std::string& key_file, const std::string& key_name = {}) {
    return Fabric::open({.transport = {.device = "fake_0"},
                         .role = role,
                         .address = "127.0.0.1",
                         .key_file = key_file,
                         .key_name = key_name},
                        generous(), registry_);
  };
  const auto server = open_with(Role::kServer, path);
  ASSERT_OK(server);
  EXPECT_EQ((*server)->bootstrap(), Bootstrap::kSocket);
  EXPECT_NE((*server)->admission().find("prove a key of " + path), std::string::npos) << (*server)->admission();
  const auto listener = (*server)->listen({});
  ASSERT_OK(listener);
  const auto client = open_with(Role::kClient, path, "old");
  ASSERT_OK(client);
  auto dialing = std::async(std::launch::async, [&]() -> Result<Lifeline> {
    VERBENA_ASSIGN(const auto dialed, (*client)->dial((*listener)->port(), endpoint_of(1), generous()));
    EXPECT_EQ(dialed->how().route, nullptr);
    return dialed->finish(generous());
  });
  const auto incoming = (*listener)->next(generous());
  ASSERT_OK(incoming);
  EXPECT_EQ((*incoming)->key_name(), "old");
  ASSERT_OK((*incoming)->answer(endpoint_of(2), generous()));
  EXPECT_OK((*incoming)->finish(generous()));
  EXPECT_OK(dialing.get());

  // Without a key it is RDMA CM's again, which finds nobody, and says what to look at.
  const auto keyless = open_with(Role::kClient, {});
  ASSERT_OK(keyless);
  EXPECT_EQ((*keyless)->bootstrap(), Bootstrap::kCm);
  const auto refused = (*keyless)->dial((*listener)->port(), endpoint_of(1), generous());
  ASSERT_STATUS(refused, Status::kConnectionRefused);
  EXPECT_TRUE(contains(refused.error(), "key file")) << refused.error().text();
  EXPECT_NE((*keyless)->admission().find("open to anybody who reaches the port"), std::string::npos);

  EXPECT_STATUS(open_with(Role::kClient, path, "none"), Status::kNotFound);
  EXPECT_STATUS(open_with(Role::kClient, {}, "new"), Status::kBadArgument);
  EXPECT_STATUS(open_with(Role::kServer, path + ".none"), Status::kNotFound);
}

TEST_F(SharedDevices, WithoutRdmaCmASocketStillCan) {
  cm_.calls = 0;
  cm_.fail_at = 1;
  cm_.fail_errno = ENODEV;
  EXPECT_STATUS(open("fake_0"), Status::kDevice);
  EXPECT_EQ(open_devices(), 0U);
  const auto by_socket = open("fake_0", Bootstrap::kSocket);
  EXPECT_OK(by_socket);
  // Asked again, it is tried again, on the NIC that is open.
  const auto by_cm = open("fake_0");
  ASSERT_OK(by_cm);
  EXPECT_EQ(&(*by_cm)->nic(), &(*by_socket)->nic());
}

}  // namespace
}  // namespace verbena::link::cm
