// One side of a test: a NIC, a protection domain and a loop, and registered memory.
#pragma once

#include "engine/loop.hpp"
#include "host/arena.hpp"
#include "nic/nic.hpp"

#include <device.hpp>
#include <pattern.hpp>
#include <result.hpp>

#include <gtest/gtest.h>

#include <memory>

namespace verbena::test {

inline constexpr std::chrono::seconds kPatience{20};
[[nodiscard]] inline Deadline patience() { return Deadline::after(kPatience); }

/// Registered memory of its own arena.
class Region {
 public:
  static constexpr int kAll =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  Region(nic::Nic& nic, ibv_pd* pd, std::size_t bytes, int access = kAll) : nic_(nic) {
    auto arena = host::Arena::create(
        {.size_bytes = bytes, .share = host::Share::kReadWrite, .prefault_threads = 1, .name = "test"});
    EXPECT_OK(arena);
    arena_ = std::move(*arena);
    auto id = nic.attach(arena_, {.to = nic::Grant::To::kAnyPeer});
    EXPECT_OK(id);
    id_ = *id;
    auto mr = nic.reg_mr(pd, arena_.data(), bytes, reinterpret_cast<std::uintptr_t>(arena_.data()), access);
    EXPECT_OK(mr);
    mr_ = nic::Mr(nic, *mr);
    bytes_ = {arena_.data(), bytes};
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    mr_.reset();
    EXPECT_OK(nic_.detach(id_));
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] engine::LocalSpan local(std::size_t offset, std::size_t length) const {
    return {bytes_.data() + offset, length, mr_->lkey};
  }
  [[nodiscard]] engine::RemoteSpan remote(std::size_t offset, std::size_t length) const {
    return {reinterpret_cast<std::uintptr_t>(bytes_.data()) + offset, length, mr_->rkey};
  }
  [[nodiscard]] nic::Window window() const { return nic_.window_of(mr_.get()); }

 private:
  nic::Nic& nic_;
  host::Arena arena_;
  std::uint64_t id_ = 0;
  nic::Mr mr_;
  std::span<std::byte> bytes_;
};

struct LoopSide {
  explicit LoopSide(const engine::LoopOptions& options = {}) {
    auto opened = open_nic_under_test();
    EXPECT_OK(opened);
    nic = std::move(*opened);
    auto made_pd = nic->alloc_pd();
    EXPECT_OK(made_pd);
    pd = nic::Pd(*nic, *made_pd);
    auto made_loop = engine::CompletionLoop::create(*nic, options);
    EXPECT_OK(made_loop);
    loop = std::move(*made_loop);
  }
  /// Peers stay known for a while.
  [[nodiscard]] nic::Nic::Objects objects_but_peers() const {
    nic::Nic::Objects objects = nic->objects();
    objects.peers = 0;
    return objects;
  }
  [[nodiscard]] std::uint64_t rounds(std::uint64_t count) const { return test::rounds(*nic, count); }

  std::unique_ptr<nic::Nic> nic;
  nic::Pd pd;
  std::unique_ptr<engine::CompletionLoop> loop;
};

/// Polls the loops in turn until `done`, within patience.
template <class Done>
[[nodiscard]] bool poll_until(std::initializer_list<engine::CompletionLoop*> loops, Done&& done) {
  const Deadline deadline = patience();
  while (!done()) {
    unsigned handled = 0;
    for (auto* loop : loops) handled += loop->poll();
    if (handled == 0 && deadline.passed()) return false;
  }
  return true;
}

}  // namespace verbena::test
