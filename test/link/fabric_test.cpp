// The choice of the NIC and the bootstrap, on whatever this machine has: the device of VERBENA_NIC, or none.
#include "link/fabric.hpp"
#include "link/socket_watcher.hpp"
#include "result.hpp"
#include "support.hpp"
#include "transport.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <utility>

namespace verbena::link {
namespace {

using namespace test;
using namespace verbena::test;

Result<std::unique_ptr<Fabric>> open(const Transport& transport, Role role = Role::kServer,
                                     const std::string& address = {}) {
  return Fabric::open({.transport = transport, .role = role, .address = address, .port = 7}, generous());
}
bool has(const Result<std::unique_ptr<Fabric>>& fabric, std::string_view part) {
  return fabric && (*fabric)->reason().find(part) != std::string::npos;
}

TEST(Fabric, TakesTheSoftNicWhenAsked) {
  const auto fabric = open({.device = "soft", .gid_index = {}});
  ASSERT_OK(fabric);
  EXPECT_EQ((*fabric)->nic().kind(), nic::Kind::kSoft);
  EXPECT_EQ((*fabric)->address(), "127.0.0.1");
  EXPECT_TRUE(has(fabric, "software NIC (as asked for), RDMA CM over TCP")) << (*fabric)->reason();
  EXPECT_TRUE(has(open({.bootstrap = Bootstrap::kSocket, .device = "soft", .gid_index = {}}), "socket over TCP"));
}

TEST(Fabric, WithoutADeviceSaysWhyItIsTheSoftNic) {
  VERBENA_SKIP_ON_A_DEVICE("there is one here");
  const auto fabric = open({});
  ASSERT_OK(fabric);
  EXPECT_EQ((*fabric)->nic().kind(), nic::Kind::kSoft);
  EXPECT_GT((*fabric)->reason().size(), std::string_view("software NIC (), RDMA CM over TCP").size())
      << (*fabric)->reason();
  EXPECT_FALSE(has(fabric, ";")) << (*fabric)->reason();
}

TEST(Fabric, TakesAUsableDeviceByItself) {
  if (is_soft_under_test()) GTEST_SKIP() << "no RDMA device: VERBENA_NIC names none";
  for (const Bootstrap bootstrap : {Bootstrap::kCm, Bootstrap::kSocket}) {
    const auto fabric = open({.bootstrap = bootstrap, .device = {}, .gid_index = {}});
    ASSERT_OK(fabric);
    EXPECT_STREQ((*fabric)->nic().name(), device_under_test());
    EXPECT_TRUE(has(fabric, "the first usable RDMA device")) << (*fabric)->reason();
    EXPECT_TRUE(has(fabric, to_string(bootstrap))) << (*fabric)->reason();
  }
  // By the address, on either side.
  const auto own = open({});
  ASSERT_OK(own);
  const std::string address = (*own)->address();
  EXPECT_TRUE(has(open({}, Role::kServer, address), "the device of that address"));
  EXPECT_TRUE(has(open({}, Role::kClient, address), "the device towards that address"));
}

TEST(Fabric, LoopbackIsTheSoftNics) {
  const auto by_cm = open({}, Role::kServer, "127.0.0.1");
  ASSERT_OK(by_cm);
  EXPECT_EQ((*by_cm)->nic().kind(), nic::Kind::kSoft);
  EXPECT_TRUE(has(by_cm, "loopback")) << (*by_cm)->reason();
}

TEST(Fabric, LoopbackCarriesTheHandshakeOfADeviceBySocket) {
  if (is_soft_under_test()) GTEST_SKIP() << "no RDMA device: VERBENA_NIC names none";
  const auto by_socket = open({.bootstrap = Bootstrap::kSocket, .device = {}, .gid_index = {}}, Role::kServer, "::1");
  ASSERT_OK(by_socket);
  EXPECT_EQ((*by_socket)->nic().kind(), nic::Kind::kVerbs);
}

TEST(Fabric, NamesOfNoDeviceAreErrors) {
  for (const char* name : {":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0:1x", "mlx5_0:256", "soft:1"})
    EXPECT_STATUS(open({.device = name, .gid_index = {}}), Status::kBadArgument) << name;
  const auto missing = open({.device = "no_such_device", .gid_index = {}});
  ASSERT_FALSE(missing.has_value());
  EXPECT_TRUE(missing.error().status() == Status::kNotFound || missing.error().status() == Status::kDevice ||
              missing.error().status() == Status::kUnsupported)
      << missing.error().text();
  EXPECT_STATUS(open({}, Role::kServer, "no.such.name.invalid"), Status::kNotFound);
}

TEST(Fabric, ASocketsPortOrGidOutOfRangeIsAnError) {
  if (is_soft_under_test()) GTEST_SKIP() << "no RDMA device: VERBENA_NIC names none";
  const std::string device = device_under_test();
  EXPECT_STATUS(open({.device = device + ":200", .gid_index = {}}), Status::kBadArgument);
  EXPECT_STATUS(open({.device = device, .gid_index = 200}), Status::kNotFound);
  const auto fabric = open({.device = device, .gid_index = {}}, Role::kServer, "127.0.0.1");
  ASSERT_OK(fabric);
  const auto listener = (*fabric)->listen({});
  ASSERT_FALSE(listener.has_value());
  EXPECT_EQ(listener.error().status(), Status::kNotFound) << listener.error().text();
  EXPECT_TRUE(contains(listener.error(), "socket mode")) << listener.error().text();
}

/// The limits of user data are CM's on every NIC, so that a program that works on one works on the other.
TEST(Fabric, CmModeHasItsLimitsOnTheSoftNicToo) {
  const auto fabric = open({.device = "soft", .gid_index = {}});
  ASSERT_OK(fabric);
  const auto listener = (*fabric)->listen({});
  ASSERT_OK(listener);
  const std::uint16_t port = (*listener)->port();
  EXPECT_STATUS((*fabric)->dial(port, make_endpoint(1, kMaxCmRequestBytes + 1), generous()), Status::kTooLong);
  // Whoever does not keep to it himself is told.
  auto stranger = std::async(std::launch::async, [&] {
    return dial("127.0.0.1", port, make_endpoint(1, kMaxCmRequestBytes + 1), generous());
  });
  EXPECT_STATUS((*listener)->next(brief()), Status::kTimedOut);
  EXPECT_STATUS(stranger.get(), Status::kTooLong);
  const auto end = [&](std::uint64_t seed, std::size_t private_bytes) {
    Endpoint endpoint = make_endpoint(seed, private_bytes);
    endpoint.qp.gid = (*fabric)->nic().gid();
    return endpoint;
  };
  auto client =
      std::async(std::launch::async, [&] { return (*fabric)->dial(port, end(1, kMaxCmRequestBytes), generous()); });
  auto incoming = (*listener)->next(generous());
  ASSERT_OK(incoming);
  ASSERT_OK((*incoming)->confirm(generous()));
  EXPECT_STATUS((*incoming)->answer(end(2, kMaxCmAnswerBytes + 1), generous()), Status::kTooLong);
  ASSERT_OK((*incoming)->answer(end(2, kMaxCmAnswerBytes), generous()));
  EXPECT_OK(client.get());
}

/// What carried the handshake stays open, and tells of the other end's end, on every NIC.
TEST(Fabric, LifelinesHearOfTheEnd) {
  for (const Bootstrap bootstrap : {Bootstrap::kCm, Bootstrap::kSocket}) {
    const auto fabric =
        open({.bootstrap = bootstrap, .device = is_soft_under_test() ? "soft" : device_under_test(), .gid_index = {}});
    ASSERT_OK(fabric);
    nic::Nic& nic = (*fabric)->nic();
    const nic::Pd pd(nic, nic.alloc_pd().value());
    const nic::Cq cq(nic, nic.create_cq(8, nullptr).value());
    nic::QpOptions options{.send_cq = cq.get(), .recv_cq = cq.get()};
    const nic::Qp a(nic, nic.create_qp(pd.get(), options).value());
    const nic::Qp b(nic, nic.create_qp(pd.get(), options).value());
    auto [at_client, at_server] = connect_over(**fabric, b.get(), **fabric, a.get());
    ASSERT_OK(at_client);
    ASSERT_OK(at_server);
    at_server->watch(nic, b.get());
    EXPECT_EQ(nic.qp_failure(b.get()), Status::kOk);
    *at_client = {};
    const Deadline deadline = generous();
    while (nic.qp_failure(b.get()) == Status::kOk && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(nic.qp_failure(b.get()), Status::kPeerLost) << to_string(bootstrap);
    *at_server = {};
  }
}

/// A child has a copy of a socket, which stays in the epoll set when the parent closes its own; and the number is
/// another socket's then.
TEST(Fabric, AnEndIsNotTakenForThatOfAnotherSocketWithTheSameDescriptor) {
  const auto fabric = open({.device = "soft", .gid_index = {}});
  ASSERT_OK(fabric);
  nic::Nic& nic = (*fabric)->nic();
  const nic::Pd pd(nic, nic.alloc_pd().value());
  const nic::Cq cq(nic, nic.create_cq(8, nullptr).value());
  nic::QpOptions options{.send_cq = cq.get(), .recv_cq = cq.get()};
  const nic::Qp healthy(nic, nic.create_qp(pd.get(), options).value());
  const nic::Qp ended(nic, nic.create_qp(pd.get(), options).value());
  const auto watcher = SocketWatcher::start();
  ASSERT_OK(watcher);
  const auto make_pair = [] {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    return std::pair(Fd(ends[0]), Fd(ends[1]));
  };
  auto [first, its_peer] = make_pair();
  const int number = first.get();
  const Fd copy(::dup(number));
  { const auto lifeline = (*watcher)->take(std::move(first)); }
  auto [other, others_peer] = make_pair();
  if (other.get() != number) {
    ASSERT_EQ(::dup2(other.get(), number), number);
    other = Fd(number);
  }
  auto second = (*watcher)->take(std::move(other));
  ASSERT_OK(second);
  second->watch(nic, healthy.get());
  auto [last, lasts_peer] = make_pair();
  auto third = (*watcher)->take(std::move(last));
  ASSERT_OK(third);
  third->watch(nic, ended.get());
  its_peer.reset();
  lasts_peer.reset();  // Its event comes behind the other one.
  const Deadline deadline = generous();
  while (nic.qp_failure(ended.get()) == Status::kOk && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(nic.qp_failure(ended.get()), Status::kPeerLost);
  EXPECT_EQ(nic.qp_failure(healthy.get()), Status::kOk);
}

}  // namespace
}  // namespace verbena::link
