// The store: values of 64 bytes of 64 keys of 16 bytes.
#include "engine.hpp"
#include "operations.hpp"

#include <verbena/kv.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace verbena::budget {

namespace {

constexpr std::size_t kKeys = 64;
constexpr std::size_t kValueBytes = 64;

struct Store {
  explicit Store(kv::ClientOptions options) {
    for (std::size_t i = 0; i < kKeys; ++i) std::memcpy(keys[i].data(), &i, sizeof i);
    const Background background;
    kv::ServerOptions serving;
    serving.transport.device = "soft";
    serving.address = "127.0.0.1";
    serving.port = 0;
    serving.memory_bytes = std::size_t{32} << 20;
    serving.max_clients = 2;
    serving.max_items = 65536;
    serving.pin_workers = false;
    // Nothing is freed while we count: how much is would depend on the time.
    serving.grace = std::chrono::minutes{1};
    server = must(kv::Server::start(serving));
    options.transport = serving.transport;
    options.address = serving.address;
    options.port = server->port();
    options.timeout = std::chrono::seconds{30};
    client = must(kv::Client::connect(options));
    for (const auto& key : keys)
      if (client->put(key, value).status != Status::kOk) std::_Exit(EXIT_FAILURE);
    require_one_shard();
  }
  [[nodiscard]] kv::Key next() noexcept { return keys[at++ % kKeys]; }
  /// Whether the operation that was started last has ended, and well.
  [[nodiscard]] bool finish() noexcept {
    std::array<kv::Completion, 1> done;
    return client->poll(done) == 1 && done[0].outcome.status == Status::kOk;
  }

  std::array<std::array<std::byte, 16>, kKeys> keys{};
  std::array<std::byte, kValueBytes> value{};
  std::array<std::byte, kValueBytes> out{};
  std::size_t at = 0;
  std::unique_ptr<kv::Server> server;
  std::unique_ptr<kv::Client> client;
};

[[nodiscard]] kv::ClientOptions looking_up(kv::Lookup lookup, std::size_t known) {
  kv::ClientOptions options;
  options.lookup = lookup;
  options.known_locations = known;
  return options;
}

/// A blocking call that the server has no part in.
template <std::size_t kKnown, std::uint64_t kv::LookupCounters::* kWay>
bool get_one_sided(Meter& meter) {
  static Store store(looking_up(kv::Lookup::kOneSided, kKnown));
  for (std::size_t i = 0; i < kKeys; ++i)
    if (store.client->get(store.next(), store.out).status != Status::kOk) return false;
  const std::uint64_t before = store.client->lookups().*kWay;
  const bool is_well = meter.alone([&] { return store.client->get(store.next(), store.out).status == Status::kOk; });
  const kv::LookupCounters after = store.client->lookups();
  return is_well && after.*kWay > before && after.by_message == 0;
}

bool get_by_message(Meter& meter) {
  static Store store(looking_up(kv::Lookup::kMessage, 0));
  return meter.rounds([&] { return store.client->start_get(store.next(), store.out, 1) == Status::kOk; }, &turn,
                      [&] { return store.finish(); });
}

bool put(Meter& meter) {
  static Store store(looking_up(kv::Lookup::kMessage, 0));
  return meter.rounds([&] { return store.client->start_put(store.next(), store.value, 1) == Status::kOk; }, &turn,
                      [&] { return store.finish(); });
}

constexpr std::array kOfStore = {
    Operation{"get-known", &get_one_sided<4096, &kv::LookupCounters::by_location>},
    Operation{"get-index", &get_one_sided<0, &kv::LookupCounters::by_index>},
    Operation{"get-message", &get_by_message},
    Operation{"put", &put},
};

}  // namespace

std::span<const Operation> store_operations() { return kOfStore; }

}  // namespace verbena::budget
