// Calls of the mesh in C allocate nothing once it is joined.
#include "allocations.hpp"
#include "device.hpp"
#include "temporary_directory.hpp"

#include <verbena/mesh.h>

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace verbena::test {
namespace {

/// Two processes, and a window of the second as the first has found it.
class MeshOfTwo {
 public:
  MeshOfTwo() {
    std::jthread other([this] { join(1); });
    join(0);
    other.join();
    void* memory = nullptr;
    EXPECT_EQ(mesh_allocate(meshes_[1], 4096, &memory), MESH_OK) << mesh_error_detail();
    EXPECT_EQ(mesh_publish(meshes_[1], "window", memory, 4096), MESH_OK) << mesh_error_detail();
    std::jthread owner([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) (void)poll(1);
    });
    EXPECT_EQ(mesh_find(lane(0), 1, "window", 60'000, &window), MESH_OK) << mesh_error_detail();
  }
  MeshOfTwo(const MeshOfTwo&) = delete;
  MeshOfTwo& operator=(const MeshOfTwo&) = delete;
  ~MeshOfTwo() {
    for (mesh_t* mesh : meshes_) EXPECT_EQ(mesh_leave(mesh), MESH_OK);
  }
  [[nodiscard]] mesh_lane_t* lane(unsigned id) const { return mesh_lane(meshes_.at(id), 0); }
  /// Takes what is there, and gives messages back: how many messages there were, or -1.
  [[nodiscard]] int poll(unsigned id) const {
    std::array<mesh_completion_t, 4> out{};
    const int count = mesh_poll(lane(id), out.data(), out.size(), MESH_ALL);
    int messages = 0;
    for (int i = 0; i < count; ++i) {
      const mesh_completion_t& one = out.at(static_cast<std::size_t>(i));
      if (one.kind != MESH_RECEIVE) continue;
      if (mesh_release(lane(id), &one) != MESH_OK) return -1;
      ++messages;
    }
    return count < 0 ? -1 : messages;
  }

  mesh_window_t window{};

 private:
  void join(unsigned id) {
    mesh_options_t options;
    EXPECT_EQ(mesh_options_init(&options), MESH_OK);
    options.id = id;
    options.processes = 2;
    options.device = device_under_test() != nullptr ? device_under_test() : "soft";
    mesh_carrier_t* carrier = nullptr;
    EXPECT_EQ(mesh_carrier_directory(directory_.path().c_str(), "sealed", &carrier), MESH_OK) << mesh_error_detail();
    EXPECT_EQ(mesh_join(&options, carrier, &meshes_.at(id)), MESH_OK) << mesh_error_detail();
  }
  TemporaryDirectory directory_;
  std::array<mesh_t*, 2> meshes_{};
};

TEST(SealedMesh, OperationsAllocateNothing) {
  VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
  const MeshOfTwo mesh;
  ASSERT_FALSE(testing::Test::HasFailure());
  const auto is_fine = [](int code) { return code == MESH_OK || code == MESH_ERR_AGAIN; };
  const Allocations before = thread_allocations();
  int failures = 0;
  int refused = 0;
  for (int received = 0, rounds = 0; received < 1000 && rounds < 10'000'000; ++rounds) {
    void* room = nullptr;
    int code = mesh_reserve(mesh.lane(0), 1, &room);
    if (code == MESH_OK) {
      code = mesh_commit_imm(mesh.lane(0), 1, room, 64, 0, 1);
      if (code != MESH_OK) failures += mesh_cancel(mesh.lane(0), 1, room) != MESH_OK;
    }
    refused += code == MESH_ERR_AGAIN;
    failures += !is_fine(code) + !is_fine(mesh_send(mesh.lane(0), 1, "x", 1, 0)) +
                !is_fine(mesh_write(mesh.lane(0), &mesh.window, 0, "x", 1, 0));
    failures += mesh.poll(0) < 0;
    const int messages = rounds % 8 == 7 ? mesh.poll(1) : 0;
    failures += messages < 0;
    received += messages;
  }
  EXPECT_EQ(thread_allocations() - before, Allocations{});
  EXPECT_EQ(failures, 0);
  EXPECT_GT(refused, 0) << "a call that is told to try again allocates nothing either";
}

}  // namespace
}  // namespace verbena::test
