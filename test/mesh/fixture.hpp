// Meshes whose processes are objects of this one, each joined by a thread.
#pragma once

#include "base/hash.hpp"
#include "mesh/mesh.hpp"

#include <chaos.hpp>
#include <device.hpp>
#include <pattern.hpp>
#include <result.hpp>
#include <temporary_directory.hpp>

#include <verbena/mesh.hpp>

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::mesh::test {

using namespace verbena::test;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

/// For any machine that is only slow.
inline constexpr auto kPatience = 60s;
[[nodiscard]] inline Deadline patience() { return Deadline::after(kPatience); }

[[nodiscard]] inline Bytes pattern(std::size_t length, std::uint64_t seed) {
  Bytes bytes(length);
  fill(bytes, seed);
  return bytes;
}

[[nodiscard]] inline Options options_for(unsigned id, unsigned processes) {
  Options options{.id = id, .processes = processes};
  options.device = device_under_test() != nullptr ? device_under_test() : "soft";
  options.join_timeout = kPatience;
  return options;
}

class Meshes : public testing::Test {
 protected:
  using Joined = Result<std::unique_ptr<Mesh>>;

  [[nodiscard]] Joined join(const Options& options) {
    auto carrier = directory_carrier(directory.path(), "test");
    EXPECT_OK(carrier);
    return Mesh::join(options, std::move(*carrier));
  }
  /// All processes at once.
  [[nodiscard]] std::vector<Joined> join_all(const std::vector<Options>& options) {
    std::vector<Joined> joined(options.size());
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < options.size(); ++i) threads.emplace_back([&, i] { joined[i] = join(options[i]); });
    threads.clear();
    return joined;
  }
  /// Processes that differ by their ids alone.
  void start(unsigned processes, const std::function<void(Options&)>& change = {}) {
    std::vector<Options> options;
    for (unsigned id = 0; id < processes; ++id) {
      options.push_back(options_for(id, processes));
      if (change) change(options.back());
    }
    for (auto& joined : join_all(options)) {
      ASSERT_OK(joined);
      meshes.push_back(std::move(*joined));
      const std::string_view description = meshes.back()->description();
      EXPECT_NE(description.find(meshes.back()->options().device), std::string_view::npos) << description;
    }
    // Everybody hears of everybody first; tests look at what follows.
    for (unsigned id = 0; id < processes; ++id)
      for (unsigned thread = 0; thread < meshes[id]->options().threads; ++thread)
        for (unsigned news = 1; news < processes; ++news) ASSERT_EQ(next(id, thread).kind, Completion::Kind::kJoined);
  }
  [[nodiscard]] Lane& lane(unsigned id, unsigned thread = 0) { return meshes[id]->lane(thread); }
  /// What the process hears next; all others poll, too, because a software NIC moves on by its owner's polls.
  [[nodiscard]] Completion next(unsigned id, unsigned thread = 0, Which which = Which::kAll) {
    const Deadline deadline = patience();
    for (;;) {
      std::array<Completion, 1> one;
      if (lane(id, thread).poll(one, which) == 1) return one[0];
      turn();
      if (!deadline.passed()) continue;
      ADD_FAILURE() << "process " << id << " hears nothing";
      return {};
    }
  }
  void turn() {
    for (auto& mesh : meshes)
      for (unsigned thread = 0; mesh && thread < mesh->options().threads; ++thread)
        static_cast<LaneOfMesh&>(mesh->lane(thread)).turn();
  }
  template <class Done>
  [[nodiscard]] bool until(Done&& done) {
    for (const Deadline deadline = patience(); !done(); turn())
      if (deadline.passed()) return false;
    return true;
  }
  /// Calls until it is not kAgain.
  template <class Call>
  [[nodiscard]] Status patiently(Call&& call) {
    Status status = Status::kAgain;
    EXPECT_TRUE(until([&] { return (status = call()) != Status::kAgain; }));
    return status;
  }
  /// A window of the second process, as the first one has found it.
  [[nodiscard]] Window window_of_second() {
    const auto memory = meshes[1]->allocate(4096);
    EXPECT_OK(memory);
    if (!memory) return {};
    EXPECT_OK(meshes[1]->publish("w", *memory));
    return found(0, 1, "w");
  }
  /// Sends from the first process to the second, which polls nothing, until no credit is left: how many messages.
  [[nodiscard]] unsigned send_without_credit() {
    unsigned sent = 0;
    std::array<Completion, 8> some;
    for (int idle = 0; idle < 2000; ++idle) {
      if (lane(0).send(1, pattern(8, 0), 0) == Status::kOk) idle = 0, ++sent;
      (void)lane(0).poll(some, Which::kSends);
    }
    return sent;
  }
  [[nodiscard]] Window found(unsigned id, unsigned peer, std::string_view name) {
    // The owner must poll to tell of it.
    std::jthread others([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) static_cast<LaneOfMesh&>(lane(peer)).turn();
    });
    const auto window = lane(id).find(peer, name, patience());
    EXPECT_OK(window);
    return window.value_or(Window{});
  }

  TemporaryDirectory directory;
  std::vector<std::unique_ptr<Mesh>> meshes;
};

}  // namespace verbena::mesh::test
