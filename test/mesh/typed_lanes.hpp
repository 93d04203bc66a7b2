// Two processes of a mesh with typed lanes, of which the first has a window of cells of the second.
#pragma once

#include "fixture.hpp"

#include <verbena/typed_mesh.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace verbena::mesh::test {

class TypedLanes : public Meshes {
 protected:
  static constexpr std::size_t kCells = 512;

  /// Starts both; the second one publishes its first `published` cells.
  template <class Change>
  void start_lanes(std::size_t published, Change&& change) {
    ASSERT_NO_FATAL_FAILURE(start(2, change));
    for (unsigned id = 0; id < 2; ++id) {
      auto made = typed::MeshLane::over(lane(id));
      ASSERT_OK(made);
      ends.at(id) = std::move(*made);
      auto allocated = typed::MemoryRegion<std::uint64_t>::allocate(*meshes[id], kCells);
      ASSERT_OK(allocated);
      regions.at(id) = std::move(*allocated);
    }
    ASSERT_OK(ends[1].publish("cells", regions[1], 0, published));
    const auto window = typed::PeerSegment<std::uint64_t>::of(found(0, 1, "cells"));
    ASSERT_TRUE(window.has_value()) << error_detail();
    there = *window;
  }
  /// Polls both ends until `done()`.
  template <class Done>
  [[nodiscard]] bool polled(Done&& done) {
    for (const Deadline limit = patience(); !done();) {
      if (limit.passed()) return false;
      for (typed::MeshLane& each : ends) (void)each.start_flush(&each == ends.data() ? 1 : 0).poll();
    }
    return true;
  }

  std::array<typed::MemoryRegion<std::uint64_t>, 2> regions;
  std::array<typed::MeshLane, 2> ends;
  typed::PeerSegment<std::uint64_t> there;
};

}  // namespace verbena::mesh::test
