// Clients that come and leave at random, several at a time, in the midst of whatever they do.
#pragma once

#include "model.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace verbena::kv::testing_support {

/// Some clients are turned away: one that has left counts for up to a second.
inline ServerOptions churn_server() {
  ServerOptions options = small_server();
  options.max_clients = 64;
  options.lease_bytes = std::size_t{64} << 10;
  options.max_value_bytes = std::size_t{1} << 20;
  return options;
}

class Churn {
 public:
  explicit Churn(const Server& server) : server_(server) {}

  /// Until `lives` clients in all have been there, by threads with some clients each.
  void live(unsigned lives, unsigned seed) const {
    std::atomic<int> left{static_cast<int>(lives)};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kThreads; ++i)
      threads.emplace_back([this, &left, number = seed * kThreads + i] { run(left, number); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(left.load(), 0);
  }

  /// Nobody is there any more, and the keys go: what is left after this is a leak.
  void clear() const {
    EXPECT_TRUE(eventually([&] { return server_.statistics().sessions == 0; })) << server_.statistics().sessions;
    EXPECT_TRUE(eventually([&] { return server_.statistics().clients == 0; })) << server_.statistics().clients;
    {
      const auto client = connect(client_options(server_));
      for (unsigned i = 0; client && i < kKeys; ++i) (void)client->erase(key_of(name_of(i)));
    }
    const auto is_empty = [&] {
      const ServerStatistics now = server_.statistics();
      return now.clients == 0 && now.sessions == 0 && now.items == 0 && now.used_bytes == 0 && now.resting_bytes == 0;
    };
    EXPECT_TRUE(eventually(is_empty));
    const ServerStatistics now = server_.statistics();
    std::uint64_t used = 0, free = 0;
    for (std::size_t i = 0; i < kMemoryClasses; ++i) {
      used += now.memory[i].used;
      free += now.memory[i].free_bytes;
    }
    EXPECT_EQ(used, 0u) << "blocks";
    EXPECT_EQ(free, now.capacity_bytes);
  }

 private:
  static constexpr unsigned kThreads = 3, kEach = 3, kKeys = 16;
  using Random = std::mt19937;

  [[nodiscard]] static std::string name_of(unsigned number) { return "churn" + std::to_string(number); }
  [[nodiscard]] static std::string key_by(Random& random) { return name_of(random() % kKeys); }

  void run(std::atomic<int>& left, unsigned seed) const {
    Random random(seed);
    std::array<std::unique_ptr<Client>, kEach> clients;
    const Deadline deadline = Deadline::after(std::chrono::seconds{100});
    while (left.load() > 0 && !deadline.passed()) {
      auto& client = clients[random() % kEach];
      if (client && random() % 3 == 0) {
        client.reset();
      } else if (client) {
        act(*client, random);
      } else {
        client = come(random);
        if (client) left.fetch_sub(1);
      }
    }
  }

  /// A client; null when the server is full, or for one that never meant to be a client.
  [[nodiscard]] std::unique_ptr<Client> come(Random& random) const {
    if (random() % 8 == 0) return stray(random), nullptr;
    ClientOptions options = client_options(server_);
    options.buffer_bytes = std::size_t{64} << 10;
    options.depth = 1 + random() % 8;
    auto client = Client::connect(options);
    EXPECT_TRUE(client || client.error().status() == Status::kLimit) << client.error().text();
    return client ? std::move(*client) : nullptr;
  }

  /// A connection to the port that ends before it is anyone's.
  void stray(Random& random) const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string garbage(random() % 200, static_cast<char>(random()));
    (void)::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::close(fd);
  }

  /// One thing that clients do; some of it is not over when the client leaves.
  void act(Client& client, Random& random) const {
    const std::string key = key_by(random);
    std::vector<std::byte> memory(random() % 2 == 0 ? random() % 4096 : random() % 200'000);
    const auto registered = client.allocate(4096);  // Until there is no more of it.
    std::array<Completion, 4> done;
    switch (random() % 6) {
      case 0: (void)client.erase(key_of(key)); break;
      case 1: (void)client.get(key_of(key), memory); break;
      case 2: (void)client.put(key_of(key), memory); break;
      // Its answer comes, if at all, when nobody waits.
      case 3: (void)client.put(key_of(key), std::span(memory).first(memory.size() % 4096), Deadline::now()); break;
      case 4:
        if (!registered.empty()) (void)client.start_put(key_of(key), registered, 1);
        break;
      default:
        if (!registered.empty()) (void)client.start_get(key_of(key), registered, 2);
        (void)client.poll(done);
    }
    EXPECT_EQ(client.connection_error().status(), Status::kOk) << client.connection_error().text();
  }

  const Server& server_;
};

}  // namespace verbena::kv::testing_support
