// A link between two NICs of this process, and memory on both sides.
#pragma once

#include "../engine/node.hpp"
#include "nic/soft/soft_nic.hpp"
#include "remote/remote.hpp"

#include <gtest/gtest.h>

namespace verbena::remote::test {

using namespace verbena::test;

class LinkPair : public testing::Test {
 public:
  static void connect(Link& one, Link& other, const link::BringUp& how = {}) {
    const auto end_one = one.local_endpoint({});
    const auto end_other = other.local_endpoint({});
    ASSERT_OK(end_one);
    ASSERT_OK(end_other);
    ASSERT_OK(one.connect(*end_one, *end_other, patience(), how));
    ASSERT_OK(other.connect(*end_other, *end_one, patience(), how));
  }

 protected:
  explicit LinkPair(const engine::LoopOptions& loop = {}) : a(loop), b(loop) {}
  void SetUp() override { open({.bounce_bytes = 4096, .bounce_buffers = 2}); }
  void open(const LinkOptions& link_options, const LinkOptions& peer_options = {}) {
    auto first = Link::create(*a.loop, a.pd.get(), link_options);
    auto second = Link::create(*b.loop, b.pd.get(), peer_options);
    ASSERT_OK(first);
    ASSERT_OK(second);
    link = std::move(*first);
    peer = std::move(*second);
    ASSERT_NO_FATAL_FAILURE(connect(*link, *peer, how));
    b.loop->poll();
    target = std::make_unique<Region>(*b.nic, b.pd.get(), 64 * 1024);
    local = std::make_unique<Region>(*a.nic, a.pd.get(), 64 * 1024);
    ASSERT_OK(link->import_window(target->window(), patience()));
  }
  [[nodiscard]] RemoteWord word(std::size_t offset) const {
    return {target->remote(offset, 8).address, target->remote(offset, 8).rkey};
  }

  /// Keeps what is posted from now on from completing: on a device for the time of the retries, half a second.
  void hold() {
    if (device_under_test() != nullptr) {
      peer.reset();
    } else {
      nic::soft::hold_execution(link->queue_pair(), true);
    }
  }

  link::BringUp how;
  Node a;
  Node b;
  std::unique_ptr<Region> target;
  std::unique_ptr<Region> local;
  std::unique_ptr<Link> link;
  std::unique_ptr<Link> peer;
};

}  // namespace verbena::remote::test
