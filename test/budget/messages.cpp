// Messages between two ends of a connection, and between two processes of a mesh.
#include "engine.hpp"
#include "operations.hpp"

#include <verbena/mesh.hpp>
#include <verbena/rdma.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::budget {

namespace {

// --- a connection

/// The server: counts the messages, and sends them back if asked to.
struct Receiver final : rdma::Handler {
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override {
    ++messages;
    if (answers) (void)connection.send(message.data);
  }
  void on_accept(rdma::Connection& /*connection*/) noexcept override { is_accepted.store(true); }
  std::uint64_t messages = 0;
  std::atomic<bool> is_accepted{false};
  bool answers = false;
};

struct Ends {
  Ends() {
    const Background background;
    rdma::Options options{.transport = {.device = "soft"}, .address = "127.0.0.1", .port = 0};
    options.handler = &receiver;
    options.receive = rdma::Receive::kHandler;
    listener = must(rdma::Listener::start(options));
    conn = must(rdma::Connection::connect(
        {.transport = options.transport, .address = options.address, .port = listener->port()}));
    require_one_shard();
    // The client may be connected before the server has heard of it.
    const Deadline limit = Deadline::after(std::chrono::seconds{30});
    while (!receiver.is_accepted.load() && !limit.passed()) std::this_thread::yield();
  }
  Receiver receiver;
  std::unique_ptr<rdma::Listener> listener;
  std::unique_ptr<rdma::Connection> conn;
};

template <std::size_t kBytes>
bool one_way(Meter& meter) {
  static Ends ends;
  const std::array<std::byte, kBytes> bytes{};
  std::uint64_t sent = 0;
  return meter.rounds(
      [&] {
        ++sent;
        return ends.conn->send(bytes) == Status::kOk;
      },
      &turn, [&] { return ends.receiver.messages == sent; });
}

template <std::size_t kBytes>
bool there_and_back(Meter& meter) {
  static Ends ends;
  ends.receiver.answers = true;
  const std::array<std::byte, kBytes> bytes{};
  std::array<std::byte, kBytes> back{};
  return meter.rounds([&] { return ends.conn->send(bytes) == Status::kOk; }, &turn,
                      [&] {
                        const auto message = ends.conn->receive(back, Deadline::now());
                        return message && message->data.size() == kBytes;
                      });
}

// --- the mesh

/// Exchanges the blobs of the processes, which are threads of this one while they join.
class Exchange {
 public:
  Result<void> gather(unsigned id, const mesh::Blob& mine, std::span<mesh::Blob> everybody) {
    std::unique_lock lock(mutex_);
    blobs_[id] = mine;
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return arrived_ == blobs_.size(); });
    std::ranges::copy(blobs_, everybody.begin());
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<mesh::Blob, 2> blobs_{};
  std::size_t arrived_ = 0;
};
struct Member {
  Exchange& exchange;
  unsigned id;
};
Result<void> gather(const mesh::Blob& mine, std::span<mesh::Blob> everybody, void* context) {
  const Member& member = *static_cast<Member*>(context);
  return member.exchange.gather(member.id, mine, everybody);
}

struct MeshOfTwo {
  MeshOfTwo() {
    Exchange exchange;
    std::array members = {Member{exchange, 0}, Member{exchange, 1}};
    const auto join = [](Member& member) {
      mesh::Options options{.id = member.id, .processes = 2};
      options.device = "soft";
      return must(mesh::Mesh::join(options, mesh::gather_carrier(2, &gather, &member)));
    };
    std::jthread other([&] { meshes[1] = join(members[1]); });
    meshes[0] = join(members[0]);
  }
  [[nodiscard]] mesh::Lane& lane(unsigned id) const { return meshes[id]->lane(0); }
  std::array<std::unique_ptr<mesh::Mesh>, 2> meshes;
};

template <std::size_t kBytes>
bool mesh_message(Meter& meter) {
  static const MeshOfTwo mesh;
  mesh::Lane& sender = mesh.lane(0);
  mesh::Lane& receiver = mesh.lane(1);
  const std::array<std::byte, kBytes> bytes{};
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t ended = 0;
  // Whoever is not there yet refuses.
  const Deadline limit = Deadline::after(std::chrono::seconds{30});
  while (!(sender.is_here(1) && receiver.is_here(0)) && !limit.passed())
    for (mesh::Lane* lane : {&sender, &receiver}) (void)lane->poll_each([](const mesh::Completion&) {});
  const auto count = [](std::uint64_t& into, mesh::Completion::Kind kind) {
    return [&into, kind](const mesh::Completion& one) { into += one.kind == kind && one.status == Status::kOk; };
  };
  return meter.rounds(
      [&] {
        ++sent;
        return sender.send(1, bytes, sent) == Status::kOk;
      },
      [&] { (void)receiver.poll_each(count(received, mesh::Completion::Kind::kReceive)); },
      [&] {
        (void)sender.poll_each(count(ended, mesh::Completion::Kind::kSend));
        return received == sent;
      });
}

constexpr std::array kMessages = {
    Operation{"message-8", &one_way<8>},
    Operation{"message-64", &one_way<64>},
    Operation{"message-8-and-back", &there_and_back<8>},
    Operation{"mesh-8", &mesh_message<8>},
};

}  // namespace

std::span<const Operation> message_operations() { return kMessages; }

}  // namespace verbena::budget
