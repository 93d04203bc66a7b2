// Two ends of a connection as links of one node, sealed.
#pragma once

#include "sealed.hpp"

#include <transport.hpp>

#include <verbena/typed.hpp>

#include <chrono>
#include <memory>
#include <utility>

namespace verbena::test {

/// With a region of `kElements` words.
template <std::size_t kElements>
class SealedLinks : public testing::Test {
 protected:
  using Words = typed::RemoteSegment<std::uint64_t>;

  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    rdma::Options options{
        .transport = transport_under_test(), .address = is_soft_under_test() ? "127.0.0.1" : "", .port = 0};
    auto opened = rdma::Node::open({.transport = options.transport, .address = options.address});
    ASSERT_TRUE(opened.has_value()) << opened.error().text();
    node_ = std::move(*opened);
    options.node = node_.get();
    auto started = rdma::Listener::start(options);
    ASSERT_TRUE(started.has_value()) << started.error().text();
    listener_ = std::move(*started);
    options.port = listener_->port();
    auto connected = rdma::Connection::connect(options);
    ASSERT_TRUE(connected.has_value()) << connected.error().text();
    auto accepted = listener_->accept(limit());
    ASSERT_TRUE(accepted.has_value()) << error_detail();
    for (auto& [end, connection] : {std::pair{&link, &*connected}, std::pair{&peer, &*accepted}}) {
      auto made = typed::Link::over(std::move(*connection));
      ASSERT_TRUE(made.has_value()) << made.error().text();
      *end = std::move(*made);
    }
    auto allocated = typed::MemoryRegion<std::uint64_t>::allocate(*node_, kElements);
    ASSERT_TRUE(allocated.has_value()) << allocated.error().text();
    region = std::move(*allocated);
  }
  /// The first `count` words of the window of a link's peer.
  [[nodiscard]] static Words window_of(const typed::Link& of, std::size_t count) {
    const auto window = Words::of(of.peer_window(), 0, count);
    EXPECT_TRUE(window.has_value()) << error_detail();
    return window ? *window : Words();
  }
  [[nodiscard]] static std::uint64_t rounds(std::uint64_t count) {
    return device_under_test() == nullptr ? count : count / 50 + 1;
  }
  [[nodiscard]] static Deadline limit() { return Deadline::after(std::chrono::seconds{20}); }

  typed::Link link;  ///< The client's, which this thread drives.
  typed::Link peer;  ///< The listener's, which the node's thread drives.
  typed::MemoryRegion<std::uint64_t> region;

 private:
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::Listener> listener_;
};

}  // namespace verbena::test
