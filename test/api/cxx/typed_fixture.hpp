// Two ends of a connection as links of one node, for tests of the typed API.
#pragma once

#include "fixture.hpp"

#include <verbena/typed.hpp>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>

namespace verbena::typed {

using rdma::patience;

/// Its size is no power of two, so that a mix-up of bytes and elements shows.
struct Cell {
  std::uint32_t number;
  std::uint32_t word;
  std::uint32_t more = 0;
  friend bool operator==(const Cell&, const Cell&) = default;
};

class TypedTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.transport = test::transport_under_test();
    if (test::is_soft_under_test()) options_.address = "127.0.0.1";
    options_.port = 0;
    options_.timeout = options_.connect_timeout = std::chrono::seconds{20};
    auto opened = rdma::Node::open({.transport = options_.transport, .address = options_.address});
    ASSERT_OK(opened);
    node = std::move(*opened);
    options_.node = node.get();
    auto started = rdma::Listener::start(options_);
    ASSERT_OK(started);
    listener = std::move(*started);
    options_.port = listener->port();
    ASSERT_NO_FATAL_FAILURE(connect());
  }
  /// Another client.
  [[nodiscard]] std::unique_ptr<rdma::Connection> dial() {
    auto connected = rdma::Connection::connect(options_);
    EXPECT_OK(connected);
    return connected ? std::move(*connected) : nullptr;
  }
  void connect() {
    auto connected = dial();
    ASSERT_NE(connected, nullptr);
    auto accepted = listener->accept(patience());
    ASSERT_TRUE(accepted.has_value()) << to_string(accepted.error());
    link = over(std::move(connected));
    peer = over(std::move(*accepted));
  }
  [[nodiscard]] static Link over(std::unique_ptr<rdma::Connection> connection) {
    auto made = Link::over(std::move(connection));
    EXPECT_OK(made);
    return made ? std::move(*made) : Link();
  }
  template <Element T>
  [[nodiscard]] MemoryRegion<T> region_of(std::size_t count, RegionOptions options = {}) {
    auto made = MemoryRegion<T>::allocate(*node, count, options);
    EXPECT_OK(made);
    return made ? std::move(*made) : MemoryRegion<T>();
  }
  template <Element T>
  [[nodiscard]] static Segment<T> taken(MemoryRegion<T>& region, std::size_t first = 0,
                                        std::size_t count = rdma::kRest) {
    auto segment = region.take(first, count);
    EXPECT_TRUE(segment.has_value()) << to_string(segment.error());
    return segment ? std::move(*segment) : Segment<T>();
  }
  template <class T>
  [[nodiscard]] static RemoteSegment<T> remote_of(const rdma::Window& window, std::size_t first = 0,
                                                  std::size_t count = rdma::kRest) {
    auto remote = RemoteSegment<T>::of(window, first, count);
    EXPECT_TRUE(remote.has_value()) << error_detail();
    return remote ? *remote : RemoteSegment<T>();
  }
  /// Makes the elements `first`, `first` + 1, and so on.
  static void count_up(Segment<std::uint64_t>& segment, std::uint64_t first) {
    segment.use([first](std::span<std::uint64_t> all) { std::iota(all.begin(), all.end(), first); });
  }
  [[nodiscard]] static bool counts_up(const Elements<std::uint64_t>& elements, std::uint64_t first) {
    return elements.use([first](std::span<const std::uint64_t> all) mutable {
      return std::ranges::all_of(all, [&first](std::uint64_t each) { return each == first++; });
    });
  }

  std::unique_ptr<rdma::Node> node;
  std::unique_ptr<rdma::Listener> listener;
  Link link;  ///< The client's, which this thread drives.
  Link peer;  ///< The listener's, which the node's thread drives.

 private:
  rdma::Options options_;
};

}  // namespace verbena::typed
