// Two connections between two NICs of this process, and what arrived at each.
#pragma once

#include <hold.hpp>
#include "../engine/side.hpp"
#include "channel/bounce.hpp"
#include "channel/connection.hpp"
#include "nic/buffer_pool.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace verbena::channel::test {

using namespace verbena::test;
using Bytes = std::vector<std::byte>;

[[nodiscard]] inline Bytes pattern(std::size_t length, std::uint64_t seed) {
  Bytes bytes(length);
  fill(bytes, seed);
  return bytes;
}

/// Writes down every call; with `keep` off it counts only, and allocates nothing.
class Recorder final : public Handler {
 public:
  void on_message(Connection& connection, std::span<const std::byte> body) noexcept override {
    ++message_count;
    if (keep) messages.emplace_back(body.begin(), body.end());
    if (when_message) when_message(connection, body);
  }
  void on_fragment(Connection& connection, const Fragment& fragment) noexcept override {
    ++fragment_count;
    large_count += fragment.last() ? 1 : 0;
    if (keep) {
      EXPECT_EQ(fragment.offset, large.size());
      large.insert(large.end(), fragment.bytes.begin(), fragment.bytes.end());
      if (fragment.last()) larges.push_back(std::exchange(large, {}));
    }
    if (when_fragment) when_fragment(connection, fragment);
  }
  void on_complete(Connection& connection, const Completion& completion) noexcept override {
    EXPECT_TRUE(failures.empty()) << "completed after on_end";
    completion_count += completion.status == Status::kOk ? 1 : 0;
    if (keep) completions.push_back(completion);
    if (when_complete) when_complete(connection, completion);
  }
  void on_end(Connection& connection, Status reason) noexcept override {
    EXPECT_TRUE(connection.drained());
    failures.push_back(reason);
  }
  /// Whether the next completion, or the one at `index`, is this one.
  [[nodiscard]] bool completed(std::size_t index, std::uint64_t token, Status status = Status::kOk) const {
    return index < completions.size() && completions[index].token == token && completions[index].status == status;
  }

  bool keep = true;
  std::uint64_t message_count = 0;
  std::uint64_t fragment_count = 0;
  std::uint64_t large_count = 0;       ///< Whole large messages.
  std::uint64_t completion_count = 0;  ///< Those that were kOk.
  std::vector<Bytes> messages;
  Bytes large;
  std::vector<Bytes> larges;
  std::vector<Completion> completions;
  std::vector<Status> failures;
  std::function<void(Connection&, std::span<const std::byte>)> when_message;
  std::function<void(Connection&, const Fragment&)> when_fragment;
  std::function<void(Connection&, const Completion&)> when_complete;
};

/// A NIC, a loop, and what connections of the loop share.
struct Side : LoopSide {
  explicit Side(const engine::LoopOptions& options = {}) : LoopSide(options) {
    buffers.emplace(*nic, pd.get());
    EXPECT_OK(bounce.open(*buffers, {}));
  }
  [[nodiscard]] Result<std::unique_ptr<Connection>> make(const Options& options, Handler& handler) {
    return Connection::create(*loop, {.pd = pd.get(), .buffers = &*buffers, .bounce = &bounce}, options, handler);
  }

  /// Everything but the NIC.
  void close() {
    connection.reset();
    bounce = {};
    buffers.reset();
    loop.reset();
    pd.reset();
  }

  std::optional<nic::BufferPool> buffers;
  Bounce bounce;
  Recorder recorder;
  std::unique_ptr<Connection> connection;
};

/// Has two ends meet without a network between them, and hands them to their loops.
inline void join(Connection& one, Connection& other) {
  const auto end_one = one.describe({});
  const auto end_other = other.describe({});
  ASSERT_OK(end_one);
  ASSERT_OK(end_other);
  ASSERT_OK(one.meet(*end_other));
  ASSERT_OK(other.meet(*end_one));
  ASSERT_OK(one.connect(patience()));
  ASSERT_OK(other.connect(patience()));
  ASSERT_OK(one.open_lease(patience()));
  ASSERT_OK(other.open_lease(patience()));
  one.attach();
  other.attach();
}

inline void connect(Side& a, Side& b, const Options& a_options, const Options& b_options) {
  auto made_a = a.make(a_options, a.recorder);
  auto made_b = b.make(b_options, b.recorder);
  ASSERT_OK(made_a);
  ASSERT_OK(made_b);
  a.connection = std::move(*made_a);
  b.connection = std::move(*made_b);
  join(*a.connection, *b.connection);
}

class ConnectionPair : public testing::Test {
 protected:
  explicit ConnectionPair(const engine::LoopOptions& loop = {}) : a(loop), b(loop) {}
  void open(const Options& a_options = {}, const Options& b_options = {}) {
    connect(a, b, a_options, b_options);
    if (HasFatalFailure()) return;
    // Receives are posted by the first poll.
    a.loop->poll();
    b.loop->poll();
  }
  template <class Done>
  [[nodiscard]] bool until(Done&& done) {
    return poll_until({a.loop.get(), b.loop.get()}, std::forward<Done>(done));
  }
  /// Sends, polling both sides while it is kAgain.
  void send(Connection& connection, std::span<const std::byte> body) {
    Status status = Status::kAgain;
    ASSERT_TRUE(until([&] { return (status = connection.send(body)) != Status::kAgain; }));
    ASSERT_EQ(status, Status::kOk);
  }
  /// Polls until both sides are quiet.
  void settle() {
    for (int quiet = 0; quiet < 100;) quiet = a.loop->poll() + b.loop->poll() == 0 ? quiet + 1 : 0;
  }

  Side a;
  Side b;
};

[[nodiscard]] constexpr Change swap_of(std::uint64_t expected, std::uint64_t desired) noexcept {
  return {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired};
}

/// A pair with memory on both sides.
class MemoryPair : public ConnectionPair {
 protected:
  static constexpr std::size_t kBytes = 64 * 1024;

  explicit MemoryPair(const engine::LoopOptions& loop = {}) : ConnectionPair(loop) {}
  void open(const Options& a_options = {}, const Options& b_options = {}) {
    ConnectionPair::open(a_options, b_options);
    if (HasFatalFailure()) return;
    target = std::make_unique<Region>(*b.nic, b.pd.get(), kBytes);
    local = std::make_unique<Region>(*a.nic, a.pd.get(), kBytes);
    ASSERT_OK(a.connection->import_window(target->window(), patience()));
  }
  [[nodiscard]] RemoteSpan word(std::size_t offset) const { return target->remote(offset, 8); }
  [[nodiscard]] Connection& here() const { return *a.connection; }
  [[nodiscard]] Status fetch_add(RemoteSpan at, std::uint64_t delta, std::uint64_t& old, const Patience& how) const {
    return here().change({.compare_add = delta}, at, old, how);
  }
  [[nodiscard]] Status compare_swap(RemoteSpan at, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                                    const Patience& how) const {
    return here().change(swap_of(expected, desired), at, old, how);
  }
  /// Keeps what is posted from now on from completing: on a device for the time of the retries, half a second.
  void hold() {
    if (device_under_test() != nullptr) {
      b.connection.reset();
    } else {
      test::hold_execution(here().queue_pair(), true);
    }
  }

  std::unique_ptr<Region> target;
  std::unique_ptr<Region> local;
};

}  // namespace verbena::channel::test
