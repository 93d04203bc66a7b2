// Two channels between two NICs of this process, and what arrived at each.
#pragma once

#include "../engine/node.hpp"
#include "message/message.hpp"

#include <functional>
#include <utility>
#include <vector>

namespace verbena::message::test {

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
  void on_message(Channel& channel, std::span<const std::byte> body) noexcept override {
    ++message_count;
    if (keep) messages.emplace_back(body.begin(), body.end());
    if (when_message) when_message(channel, body);
  }
  void on_fragment(Channel& channel, const Fragment& fragment) noexcept override {
    ++fragment_count;
    large_count += fragment.last() ? 1 : 0;
    if (keep) {
      EXPECT_EQ(fragment.offset, large.size());
      large.insert(large.end(), fragment.bytes.begin(), fragment.bytes.end());
      if (fragment.last()) larges.push_back(std::exchange(large, {}));
    }
    if (when_fragment) when_fragment(channel, fragment);
  }
  void on_complete(Channel& channel, std::uint64_t token, Status status) noexcept override {
    EXPECT_TRUE(failures.empty()) << "completed after on_failure";
    completion_count += status == Status::kOk ? 1 : 0;
    if (keep) completions.emplace_back(token, status);
    if (when_complete) when_complete(channel);
  }
  void on_failure(Channel& channel, Status reason) noexcept override {
    EXPECT_TRUE(channel.drained());
    failures.push_back(reason);
  }

  bool keep = true;
  std::uint64_t message_count = 0;
  std::uint64_t fragment_count = 0;
  std::uint64_t large_count = 0;       ///< Whole large messages.
  std::uint64_t completion_count = 0;  ///< Those that were kOk.
  std::vector<Bytes> messages;
  Bytes large;
  std::vector<Bytes> larges;
  std::vector<std::pair<std::uint64_t, Status>> completions;
  std::vector<Status> failures;
  std::function<void(Channel&, std::span<const std::byte>)> when_message;
  std::function<void(Channel&, const Fragment&)> when_fragment;
  std::function<void(Channel&)> when_complete;
};

struct Side : Node {
  explicit Side(const engine::LoopOptions& options = {}) : Node(options) {}
  Recorder recorder;
  std::unique_ptr<Channel> channel;
};

inline void connect(Side& a, Side& b, const Options& a_options, const Options& b_options) {
  auto made_a = Channel::create(*a.loop, a.pd.get(), a_options, a.recorder);
  auto made_b = Channel::create(*b.loop, b.pd.get(), b_options, b.recorder);
  ASSERT_OK(made_a);
  ASSERT_OK(made_b);
  a.channel = std::move(*made_a);
  b.channel = std::move(*made_b);
  const auto end_a = a.channel->local_endpoint({});
  const auto end_b = b.channel->local_endpoint({});
  ASSERT_OK(end_a);
  ASSERT_OK(end_b);
  ASSERT_OK(a.channel->connect(*end_a, *end_b, patience()));
  ASSERT_OK(b.channel->connect(*end_b, *end_a, patience()));
  ASSERT_OK(a.channel->open_lease(patience()));
  ASSERT_OK(b.channel->open_lease(patience()));
}

class ChannelPair : public testing::Test {
 protected:
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
  void send(Channel& channel, std::span<const std::byte> body) {
    Status status = Status::kAgain;
    ASSERT_TRUE(until([&] { return (status = channel.send(body)) != Status::kAgain; }));
    ASSERT_EQ(status, Status::kOk);
  }
  /// Polls until both sides are quiet.
  void settle() {
    for (int quiet = 0; quiet < 100;) quiet = a.loop->poll() + b.loop->poll() == 0 ? quiet + 1 : 0;
  }

  Side a;
  Side b;
};

}  // namespace verbena::message::test
