// Lanes of a mesh whose operations own their segments, sealed: started, dropped, awaited, and waiting for credit.
#include "../mesh/typed_lanes.hpp"
#include "sealed.hpp"

#include <verbena/coroutines_mesh.hpp>

#include <array>
#include <memory>
#include <optional>
#include <utility>

namespace verbena::typed {
namespace {

using test::expect_unallocated;
using Cells = Segment<std::uint64_t>;

class SealedLanes : public mesh::test::TypedLanes {
 protected:
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    ASSERT_NO_FATAL_FAILURE(start_lanes(64, [](mesh::Options&) {}));
  }
  [[nodiscard]] Cells cells(unsigned id, std::size_t first, std::size_t count) {
    auto taken = regions.at(id).take(first, count);
    return taken ? std::move(*taken) : Cells();
  }
};

TEST_F(SealedLanes, OperationsAndSendsWithoutCredit) {
  expect_unallocated("writes, reads, dropped ones", 200, [&] {
    auto writing = ends[0].start_write(cells(0, 0, 64), there);
    auto reading = ends[0].start_read(cells(0, 64, 64), there);
    { const auto dropped = ends[0].start_write(cells(0, 128, 8), *there.part(0, 8)); }
    return polled([&] { return writing.poll() && reading.poll() && ends[0].settle(Deadline::now()) == Status::kOk; }) &&
           regions[0].held() == 2;
  });
  expect_unallocated("sends that wait for credit", 100, [&] {
    std::array<std::optional<Operation<Cells>>, 30> sends;
    for (std::size_t i = 0; i < sends.size(); ++i) sends.at(i) = ends[0].start_send(1, cells(0, i, 1));
    for (std::size_t i = 0; i < sends.size(); ++i) {
      auto receiving = ends[1].start_receive(0, cells(1, 64, 1));
      if (!polled([&] { return receiving.poll(); }) || receiving.status() != Status::kOk) return false;
    }
    return polled([&] {
      bool is_sent = true;
      for (auto& each : sends) is_sent = each->poll() && is_sent;
      return is_sent;
    });
  });
}

coroutine::Task<Status> pass(coroutine::Loop& /*loop*/, MeshLane& lane, Cells mine) {
  co_return (co_await coroutine::send(lane, 1, std::move(mine))).status;
}
coroutine::Task<Status> take(coroutine::Loop& /*loop*/, MeshLane& lane, Cells room) {
  co_return (co_await coroutine::receive(lane, 0, std::move(room))).status;
}
coroutine::Task<Status> write_and_pass(coroutine::Loop& loop, MeshLane& from, MeshLane& to, Cells mine, Cells room,
                                       PeerSegment<std::uint64_t> there) {
  auto written = co_await coroutine::write(from, std::move(mine), there);
  if (written.status != Status::kOk) co_return written.status;
  const auto [sent, received] =
      co_await coroutine::when_all(pass(loop, from, std::move(written.segment)), take(loop, to, std::move(room)));
  co_return sent != Status::kOk ? sent : received;
}

TEST_F(SealedLanes, Awaits) {
  auto loop = coroutine::Loop::make({.frames = {.frames = 16, .frame_bytes = 4096}});
  ASSERT_OK(loop);
  std::uint64_t failed = 0;
  expect_unallocated("awaits", 200, [&] {
    failed = (*loop)->failed();
    if ((*loop)->spawn(write_and_pass(**loop, ends[0], ends[1], cells(0, 0, 64), cells(1, 64, 64), there)) !=
        Status::kOk)
      return false;
    return polled([&] { return (*loop)->poll(), (*loop)->spawned() == 0; }) && (*loop)->failed() == failed;
  });
}

}  // namespace
}  // namespace verbena::typed
