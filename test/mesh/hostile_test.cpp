// A peer that says what no process of a mesh would: its connection ends, typed, and nothing else does.
#include "fixture.hpp"
#include "link/fabric.hpp"
#include "node/shard.hpp"

#include <chaos.hpp>

#include <verbena/typed_mesh.hpp>

#include <functional>
#include <string>

namespace verbena::mesh::test {
namespace {

using Kind = Completion::Kind;

/// Process 1 of 2, made of a bare connection.
class Hostile final : public channel::Handler {
 public:
  explicit Hostile(const std::string& directory) : directory_(directory) {}

  [[nodiscard]] Result<void> connect(const Options& options, wire::Hello hello) {
    VERBENA_ASSIGN(auto carrier, directory_carrier(directory_, "test"));
    Result<Blob> blob = carrier->find(0);
    for (const Deadline deadline = patience(); !blob && !deadline.passed();) blob = carrier->find(0);
    if (!blob) return std::unexpected(blob.error());
    VERBENA_ASSIGN(const wire::Card card, wire::decode(*blob));
    VERBENA_ASSIGN(fabric_,
                   link::Fabric::open({.transport = {.bootstrap = Bootstrap::kSocket, .device = options.device},
                                       .role = link::Role::kClient,
                                       .address = card.address,
                                       .port = card.port},
                                      patience()));
    VERBENA_ASSIGN(device_, node::Device::of(fabric_->shared_nic()));
    VERBENA_ASSIGN(shard_, node::Shard::create(device_, {}));
    VERBENA_ASSIGN(connection_, channel::Connection::create(shard_->loop(), shard_->memory(), {}, *this));
    VERBENA_TRY(connection_->dial(*fabric_, card.port, wire::bytes_of(hello), patience()));
    VERBENA_TRY(connection_->connect(patience()));
    connection_->attach();
    return {};
  }
  void say(std::span<const std::byte> frame) {
    Status status = Status::kAgain;
    while ((status = connection_->send(frame)) == Status::kAgain) turn();
    EXPECT_EQ(status, Status::kOk);
  }
  void turn() { shard_->loop().poll(); }

  void on_message(channel::Connection&, std::span<const std::byte>) noexcept override {}
  void on_complete(channel::Connection&, const channel::Completion&) noexcept override {}
  void on_end(channel::Connection&, Status) noexcept override {}

 private:
  const std::string directory_;
  std::unique_ptr<link::Fabric> fabric_;
  std::shared_ptr<node::Device> device_;
  std::unique_ptr<node::Shard> shard_;
  std::unique_ptr<channel::Connection> connection_;
};

template <class Frame>
[[nodiscard]] Bytes copied(const Frame& frame) {
  const auto bytes = wire::bytes_of(frame);
  return {bytes.begin(), bytes.end()};
}

class HostilePeer : public Meshes {
 protected:
  [[nodiscard]] static wire::Hello hello(std::uint64_t incarnation) {
    return {.id = 1,
            .processes = 2,
            .threads = 1,
            .message_bytes = static_cast<std::uint32_t>(Options{}.message_bytes),
            .incarnation = incarnation,
            .job = hash64(std::as_bytes(std::span(std::string_view())))};
  }
  /// Process 0, to whom the other is ready.
  void start_with(Hostile& hostile) {
    meshes.clear();
    std::filesystem::remove(directory.path() + "/test.0");  // It names the one that has gone.
    Options options = options_for(0, 2);
    Joined joined;
    std::jthread joining([&] { joined = join(options); });
    ASSERT_OK(hostile.connect(options, hello(++lives_)));
    hostile.say(wire::bytes_of(wire::Head{.kind = wire::Kind::kReady}));
    std::jthread polling([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) hostile.turn();
    });
    joining.join();
    polling.request_stop();
    polling.join();
    ASSERT_OK(joined);
    meshes.push_back(std::move(*joined));
    ASSERT_EQ(next(0).kind, Kind::kJoined);
  }

 private:
  std::uint64_t lives_ = 0;
};

TEST_F(HostilePeer, WhatIsNoFrameEndsItsConnection) {
  constexpr std::uint8_t kMostKinds = 255;
  std::vector<Bytes> frames = {Bytes(1), Bytes(7)};
  for (const std::uint8_t kind : {std::uint8_t{0}, std::uint8_t{7}, kMostKinds})
    frames.push_back(copied(wire::Head{.kind = static_cast<wire::Kind>(kind)}));
  frames.push_back(copied(wire::Head{.has_immediate = 2}));
  const rdma::Window window{.address = 4096, .length = 4096, .rkey = 1, .access = rdma::Access::kAll};
  const auto spoiled_window = [&](const std::function<void(wire::WindowFrame&)>& spoil) {
    wire::WindowFrame frame = wire::frame_of("x", window);
    spoil(frame);
    frames.push_back(copied(frame));
  };
  spoiled_window([](wire::WindowFrame& frame) { frame.name_bytes = 0; });
  spoiled_window([](wire::WindowFrame& frame) { frame.name_bytes = 65; });
  spoiled_window([](wire::WindowFrame& frame) { frame.name_bytes = ~0U; });
  spoiled_window([](wire::WindowFrame& frame) { frame.length = 0; });
  spoiled_window([](wire::WindowFrame& frame) { frame.length = ~std::uint64_t{0}; });
  spoiled_window([](wire::WindowFrame& frame) { frame.access = 8; });
  Bytes cut = copied(wire::frame_of("x", window));
  cut.pop_back();
  frames.push_back(cut);
  frames.push_back(copied(wire::GatherFrame{.number = 7}));
  frames.push_back(copied(wire::GatherFrame{.number = 1, .bytes = 65}));
  const wire::Head written{.kind = wire::Kind::kWritten, .has_immediate = 1};
  frames.push_back(copied(wire::WrittenFrame{.head = written, .address = 4096, .length = 8}));
  frames.push_back(copied(wire::WrittenFrame{.head = written, .address = 0, .length = ~std::uint64_t{0}}));
  frames.push_back(copied(wire::WrittenFrame{.head = {.kind = wire::Kind::kWritten}, .address = 0, .length = 8}));
  for (const Bytes& frame : frames) {
    SCOPED_TRACE(&frame - frames.data());
    Hostile hostile(directory.path());
    ASSERT_NO_FATAL_FAILURE(start_with(hostile));
    hostile.say(frame);
    Completion news;
    ASSERT_TRUE(until([&] {
      hostile.turn();
      return lane(0).poll(std::span(&news, 1)) == 1;
    }));
    EXPECT_EQ(news.kind, Kind::kLeft);
    EXPECT_EQ(news.status, Status::kProtocol) << to_string(news.status);
    EXPECT_EQ(lane(0).send(1, Bytes(1), 0), Status::kProtocol);
  }
}

// The user is told only of bytes that a peer had the right to write.
TEST_F(HostilePeer, AClaimToHaveWrittenNeedsTheRightToWrite) {
  using rdma::Access;
  static std::array<std::byte, 64> memory;  // It stays as long as the mesh.
  for (const Access access : {Access::kLocal, Access::kRead, Access::kAtomic, Access::kRead | Access::kWrite}) {
    SCOPED_TRACE(static_cast<int>(access));
    Hostile hostile(directory.path());
    ASSERT_NO_FATAL_FAILURE(start_with(hostile));
    ASSERT_OK(meshes[0]->add(memory, access));
    hostile.say(wire::bytes_of(wire::WrittenFrame{.head = {.kind = wire::Kind::kWritten, .has_immediate = 1},
                                                  .address = reinterpret_cast<std::uintptr_t>(memory.data()),
                                                  .length = memory.size()}));
    Completion news;
    ASSERT_TRUE(until([&] {
      hostile.turn();
      return lane(0).poll(std::span(&news, 1)) == 1;
    }));
    const bool may_write = rdma::includes(access, Access::kWrite);
    EXPECT_EQ(news.kind, may_write ? Kind::kWritten : Kind::kLeft);
    EXPECT_EQ(news.status, may_write ? Status::kOk : Status::kProtocol) << to_string(news.status);
  }
}

// The lane remembers the memory of the last claim, and that may be gone.
TEST_F(HostilePeer, AClaimToHaveWrittenMemoryThatIsGone) {
  Hostile hostile(directory.path());
  ASSERT_NO_FATAL_FAILURE(start_with(hostile));
  auto region = typed::MemoryRegion<std::uint64_t>::allocate(*meshes[0], 64);
  ASSERT_OK(region);
  const wire::WrittenFrame claim{
      .head = {.kind = wire::Kind::kWritten, .has_immediate = 1}, .address = region->window().address, .length = 64};
  Completion news;
  const auto hears = [&] {
    hostile.say(wire::bytes_of(claim));
    return until([&] {
      hostile.turn();
      return lane(0).poll(std::span(&news, 1)) == 1;
    });
  };
  ASSERT_TRUE(hears());
  EXPECT_EQ(news.kind, Kind::kWritten);
  *region = {};
  ASSERT_TRUE(hears());
  EXPECT_EQ(news.kind, Kind::kLeft);
  EXPECT_EQ(news.status, Status::kProtocol) << to_string(news.status);
}

TEST_F(HostilePeer, AWindowThatNobodyHasIsNotFoundOrRefused) {
  Hostile hostile(directory.path());
  ASSERT_NO_FATAL_FAILURE(start_with(hostile));
  hostile.say(wire::bytes_of(wire::frame_of(
      "lie", {.address = 4096, .length = 1 << 30, .memory_id = 77, .rkey = 5, .access = rdma::Access::kAll})));
  std::jthread polling([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) hostile.turn();
  });
  // A device learns of it by the first access.
  const auto window = lane(0).find(1, "lie", Deadline::after(2s));
  if (window) {
    Bytes bytes(8);
    ASSERT_EQ(lane(0).read(*window, 0, bytes, 1), Status::kOk);
    const Completion read = next(0);
    EXPECT_EQ(read.kind, Kind::kRead);
    EXPECT_NE(read.status, Status::kOk);
  } else {
    EXPECT_NE(window.error().status(), Status::kOk);
  }
}

// Its claims of who it is are checked before it gets a place.
TEST_F(HostilePeer, FalseClaimsAreRefused) {
  const auto refused = [&](const std::function<void(wire::Hello&)>& spoil, Status status) {
    Options options = options_for(0, 2);
    options.join_timeout = in_chaos() ? 3s : 500ms;
    Joined joined;
    std::jthread joining([&] { joined = join(options); });
    Hostile hostile(directory.path());
    wire::Hello claim = hello(1);
    spoil(claim);
    const auto connected = hostile.connect(options, claim);
    joining.join();
    EXPECT_FALSE(joined);
    EXPECT_FALSE(connected);
    if (!connected && !in_chaos()) {
      EXPECT_EQ(connected.error().status(), status) << connected.error().text();
    }
    std::filesystem::remove(directory.path() + "/test.0");
  };
  refused([](wire::Hello& claim) { claim.magic = 1; }, Status::kProtocol);
  refused([](wire::Hello& claim) { claim.version = 9; }, Status::kRejected);
  refused([](wire::Hello& claim) { claim.id = 0; }, Status::kRejected);
  refused([](wire::Hello& claim) { claim.id = 2; }, Status::kProtocol);
  refused([](wire::Hello& claim) { claim.id = ~0U; }, Status::kProtocol);
  refused([](wire::Hello& claim) { claim.thread = 1; }, Status::kProtocol);
  refused([](wire::Hello& claim) { claim.thread = 65535; }, Status::kProtocol);
}

}  // namespace
}  // namespace verbena::mesh::test
