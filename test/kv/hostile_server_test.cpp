// What a hostile server can do to a client: lie about values, and end the connection. Its replies, and what it says of
// itself, are of any kind, by seed; each call of the client ends with a status, and touches no memory but its own.
#include "fake_server.hpp"

#include <environment.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using testing_support::FakeServer;

constexpr std::size_t kValueBytes = 512;
constexpr std::size_t kLargeBytes = 100'000;
constexpr std::byte kCanary{0xC5};

/// Bytes for the client to write into, with others around them that nobody may touch.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : all_(bytes + 2 * kGuard, kCanary) {}
  [[nodiscard]] std::span<std::byte> bytes() { return std::span(all_).subspan(kGuard, all_.size() - 2 * kGuard); }
  [[nodiscard]] bool is_whole() const {
    const auto is_canary = [](std::byte byte) { return byte == kCanary; };
    return std::all_of(all_.begin(), all_.begin() + kGuard, is_canary) &&
           std::all_of(all_.end() - kGuard, all_.end(), is_canary);
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  std::vector<std::byte> all_;
};

/// Replies of any kind. In the shard's thread.
class Liar {
 public:
  explicit Liar(std::uint64_t seed) : random_(seed) {}

  bool operator()(channel::Connection& connection, std::span<const std::byte> body) {
    if (below(4) == 0) return false;  // The truth.
    const unsigned count = below(64) == 0 ? 2 : below(64) != 0 ? 1 : 0;
    for (unsigned i = 0; i < count; ++i) reply(connection, body);
    return true;
  }

 private:
  [[nodiscard]] std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  /// Numbers at the edges more often than others.
  [[nodiscard]] std::uint64_t number() {
    constexpr std::uint64_t kEdges[] = {0, 1, 63, 64, 4095, 4096, kLargeBytes, FakeServer::kBytes, 1ULL << 32, ~0ULL};
    const std::uint64_t edge = kEdges[below(std::size(kEdges))];
    return below(3) == 0 ? random_() : edge - below(2);
  }
  template <class Frame>
  [[nodiscard]] Frame filled() {
    std::array<std::uint64_t, sizeof(Frame) / 8> words;
    std::ranges::generate(words, [&] { return number(); });
    return std::bit_cast<Frame>(words);
  }
  /// An index entry: where an item might be, in the window or behind it.
  [[nodiscard]] std::uint64_t entry() {
    return Entry{.tag = below(1 << 12),
                 .lines = 1 + below(20),
                 .line = below(static_cast<std::uint32_t>(2 * FakeServer::kBytes / kLineBytes))}
        .pack();
  }
  [[nodiscard]] wire::ReplyKind kind_for(wire::Op op) {
    if (below(48) == 0) return static_cast<wire::ReplyKind>(1 + below(7));
    switch (op) {
      case wire::Op::kGet: return wire::ReplyKind::kValue;
      case wire::Op::kCell: return wire::ReplyKind::kCell;
      case wire::Op::kStatistics: return wire::ReplyKind::kStatistics;
      default: return wire::ReplyKind::kPlain;
    }
  }
  void reply(channel::Connection& connection, std::span<const std::byte> body) {
    wire::RequestHead request;
    std::memcpy(&request, body.data(), std::min(body.size(), sizeof request));
    // Mostly of the right form: a client gives up at the first reply that is not.
    const bool is_wild = below(24) == 0;
    const wire::ReplyKind kind = is_wild ? static_cast<wire::ReplyKind>(below(256)) : kind_for(request.op);
    const bool may_fail = kind == wire::ReplyKind::kPlain && below(3) == 0;
    wire::ReplyHead head{.status = static_cast<Status>(is_wild    ? below(256)
                                                       : may_fail ? 1 + below(11)
                                                                  : 0),
                         .kind = kind,
                         .flags = static_cast<std::uint16_t>(is_wild ? number() : 0),
                         .id = is_wild && below(2) == 0 ? static_cast<std::uint32_t>(number()) : request.id,
                         .version = number(),
                         .entry = is_wild                     ? number()
                                  : may_fail || below(2) == 0 ? 0
                                                              : entry()};
    std::vector<std::byte> message(wire::bytes_of(head).begin(), wire::bytes_of(head).end());
    const auto add = [&](std::span<const std::byte> bytes) {
      message.insert(message.end(), bytes.begin(), bytes.end());
    };
    switch (head.kind) {
      case wire::ReplyKind::kLocation:
        add(wire::bytes_of(wire::Location{.address = number(),
                                          .length = kEagerBytes + below(1 << 20),
                                          .rkey = below(1 << 16),
                                          .checksum = number()}));
        break;
      case wire::ReplyKind::kCell:
        add(wire::bytes_of(wire::CellPlace{.window_address = number() & ~0xFFFULL & ~(1ULL << 63),
                                           .window_length = 4096,
                                           .window_memory = below(8),
                                           .window_rkey = below(1 << 16),
                                           .window_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
                                           .offset = 8 * below(600)}));
        break;
      case wire::ReplyKind::kPlain:
      case wire::ReplyKind::kGoodbye: break;
      case wire::ReplyKind::kStatistics: message.resize(message.size() + 8 * below(64), std::byte{0x5A}); break;
      default: message.resize(message.size() + below(4) * below(1000), std::byte{0x5A}); break;
    }
    if (is_wild && below(2) == 0) message.resize(below(static_cast<std::uint32_t>(message.size()) + 1));
    (void)connection.send(message);
  }

  std::mt19937_64 random_;
};

void expect_sound(const Outcome& outcome, Guarded& out) {
  EXPECT_LE(outcome.status, Status::kForked);
  EXPECT_TRUE(out.is_whole());
  if (outcome.status == Status::kOk) {
    EXPECT_LE(outcome.length, out.bytes().size());
  }
}

ClientOptions options_for(const FakeServer& server) {
  ClientOptions options;
  options.transport = test::transport_under_test();
  options.port = server.port();
  options.connect_timeout = 5s;
  options.timeout = 50ms;
  return options;
}

/// Every kind of call; returns whether the connection has survived them.
bool use(Client& client, std::uint64_t round) {
  const std::string name = "key" + std::to_string(round);
  const Key key = std::as_bytes(std::span(name));
  Guarded small(kValueBytes), large(kLargeBytes);
  std::ranges::fill(large.bytes(), std::byte{1});
  const Deadline soon = Deadline::after(50ms);
  expect_sound(client.get(key, small.bytes(), soon), small);
  expect_sound(client.get(key, large.bytes(), Deadline::after(50ms)), large);
  expect_sound(client.put(key, small.bytes(), Deadline::after(50ms)), small);
  expect_sound(client.cas(key, 1, small.bytes(), Deadline::after(50ms)), small);
  expect_sound(client.erase(key, Deadline::after(50ms)), small);
  std::array<GetRequest, 4> gets;
  for (GetRequest& get : gets) get = {.key = key, .out = small.bytes(), .outcome = {}};
  client.get(gets, Deadline::after(50ms));
  for (const GetRequest& get : gets) expect_sound(get.outcome, small);
  const auto cell = client.open_cell(key, 0, Deadline::after(50ms));
  std::uint64_t old = 0;
  if (cell) {
    EXPECT_LE(client.fetch_add(*cell, 1, old, Deadline::after(50ms)), Status::kForked);
    EXPECT_LE(client.read(*cell, old, Deadline::after(50ms)), Status::kForked);
  }
  (void)client.server_statistics(Deadline::after(50ms));
  KeyCursor cursor;
  KeyPage page;
  EXPECT_LE(client.keys(key, cursor, page, Deadline::after(50ms)), Status::kForked);
  for (const Key each : page) EXPECT_TRUE(!each.empty() && each.size() <= kMaxKeyBytes);
  EXPECT_LE(client.flush(key, old, Deadline::after(50ms)), Status::kForked);
  if (round % 8 == 7) expect_sound(client.put(key, large.bytes(), Deadline::after(50ms)), large);
  return client.connection_error().status() == Status::kOk;
}

TEST(HostileServer, RepliesOfAnyKindEndNothingButTheConnection) {
  std::uint64_t rounds = 0, survived = 0;
  std::map<std::string, int> reasons;
  for (std::uint64_t seed = 1; seed <= test::number_in("VERBENA_SEEDS", 40); ++seed) {
    SCOPED_TRACE(seed);
    FakeServer server(Liar{seed});
    auto client = Client::connect(options_for(server));
    ASSERT_OK(client);
    for (std::uint64_t round = 0; round < 20; ++round) {
      ++rounds;
      if (!use(**client, round)) {
        ++reasons[(*client)->connection_error().text()];
        break;
      }
      ++survived;
    }
    if (HasFailure()) return;
  }
  std::printf("%llu rounds of calls, of which the connection survived %llu\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(survived));
  for (const auto& [reason, count] : reasons) std::printf("%d: %s\n", count, reason.c_str());
  EXPECT_LT(survived, rounds) << "no lie was noticed";
}

TEST(HostileServer, ItMaySayOfItselfWhatItLikes) {
  using Set = void (*)(wire::ServerHello&, std::uint64_t);
  constexpr Set kFields[] = {
      [](wire::ServerHello& of, std::uint64_t to) { of.workers = static_cast<std::uint16_t>(to); },
      [](wire::ServerHello& of, std::uint64_t to) { of.depth = static_cast<std::uint32_t>(to); },
      [](wire::ServerHello& of, std::uint64_t to) { of.max_key_bytes = static_cast<std::uint32_t>(to); },
      [](wire::ServerHello& of, std::uint64_t to) { of.max_value_bytes = to; },
      [](wire::ServerHello& of, std::uint64_t to) { of.grace_ns = to; },
      [](wire::ServerHello& of, std::uint64_t to) { of.window_address = to; },
      [](wire::ServerHello& of, std::uint64_t to) { of.window_length = to; },
      [](wire::ServerHello& of, std::uint64_t to) { of.window_memory = to; },
      [](wire::ServerHello& of, std::uint64_t to) { of.window_rkey = static_cast<std::uint32_t>(to); },
      [](wire::ServerHello& of, std::uint64_t to) { of.window_access = static_cast<std::uint32_t>(to); },
      [](wire::ServerHello& of, std::uint64_t to) { of.index_buckets = to; },
      [](wire::ServerHello& of, std::uint64_t to) { of.flags = static_cast<std::uint32_t>(to); },
      [](wire::ServerHello& of, std::uint64_t to) { of.version = static_cast<std::uint16_t>(to); },
  };
  int refused = 0, taken = 0;
  for (std::size_t field = 0; field < std::size(kFields); ++field) {
    for (const std::uint64_t to : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{1} << 20,
                                   std::numeric_limits<std::uint64_t>::max()}) {
      SCOPED_TRACE(testing::Message() << "field " << field << " is " << to);
      FakeServer server({}, [&](wire::ServerHello& hello) { kFields[field](hello, to); });
      ClientOptions options = options_for(server);
      options.connect_timeout = 300ms;
      auto client = Client::connect(options);
      if (!client) {
        EXPECT_NE(client.error().text()[0], '\0');
        ++refused;
        continue;
      }
      ++taken;
      (void)use(**client, 1);
      if (HasFailure()) return;
    }
  }
  std::printf("%d were refused, %d taken\n", refused, taken);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace verbena::kv
