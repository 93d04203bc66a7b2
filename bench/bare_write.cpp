// The least that a blocking write costs: post one signaled request, poll its completion, and nothing else. The
// yardstick for rdma::Connection::write in bench/softroce.sh.
// usage: bare_write DEVICE BYTES ITERATIONS       prints one JSON object
#include "base/error.hpp"
#include "link/fabric.hpp"
#include "link/link.hpp"
#include "nic/registered_arena.hpp"
#include "programs/histogram.hpp"

#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

namespace verbena {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

/// Two queue pairs of one process, of which one writes into the other's memory.
struct Pair {
  std::unique_ptr<link::Fabric> fabric;
  nic::Pd pd;
  nic::RegisteredArena from, to;
  nic::Cq cq;
  nic::Qp qp, peer;

  Result<void> open(const char* name, std::size_t bytes) {
    const Deadline deadline = Deadline::after(std::chrono::seconds{20});
    const Transport transport{.bootstrap = Bootstrap::kSocket, .device = name, .gid_index = {}};
    VERBENA_ASSIGN(fabric, link::Fabric::open({.transport = transport}, deadline));
    nic::Nic& nic = fabric->nic();
    VERBENA_ASSIGN(ibv_pd * made_pd, nic.alloc_pd());
    pd = nic::Pd(nic, made_pd);
    const host::ArenaOptions arena{.size_bytes = bytes, .share = host::Share::kReadWrite, .prefault_threads = 1};
    VERBENA_TRY(from.open(nic, pd.get(), arena, {}, IBV_ACCESS_LOCAL_WRITE));
    VERBENA_TRY(to.open(nic, pd.get(), arena, {.to = nic::Grant::To::kAnyPeer}, kAccess));
    VERBENA_ASSIGN(ibv_cq * made_cq, nic.create_cq(64, nullptr));
    cq = nic::Cq(nic, made_cq);
    for (nic::Qp* end : {&qp, &peer}) {
      nic::QpOptions options{.send_cq = cq.get(), .recv_cq = cq.get(), .max_send_wr = 8, .max_recv_wr = 1};
      options.max_inline = std::min(options.max_inline, nic.limits().max_inline);
      VERBENA_ASSIGN(ibv_qp * made, nic.create_qp(pd.get(), options));
      *end = nic::Qp(nic, made);
    }
    const link::Endpoint a = link::describe(nic, qp.get(), 0), b = link::describe(nic, peer.get(), 0);
    VERBENA_TRY(link::bring_up(nic, qp.get(), a, b, {}, deadline));
    VERBENA_TRY(link::bring_up(nic, peer.get(), b, a, {}, deadline));
    return nic.import_window(qp.get(), to.window(), deadline);
  }
};

bool post_and_poll(Pair& pair, ibv_send_wr& request) noexcept {
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair.qp.get(), &request, &bad) != 0) return false;
  ibv_wc done{};
  // Minutes: the clock would be part of what is measured.
  constexpr std::uint64_t kMostPolls = std::uint64_t{1} << 32;
  int count = 0;
  for (std::uint64_t i = 0; count == 0 && i < kMostPolls; ++i) count = ibv_poll_cq(pair.cq.get(), 1, &done);
  return count == 1 && done.status == IBV_WC_SUCCESS;
}

int run(const char* device, std::uint32_t bytes, std::uint64_t iterations) {
  const auto pair = std::make_unique<Pair>();
  if (const auto opened = pair->open(device, bytes); !opened) {
    fmt::print(stderr, "bare_write: {}\n", opened.error().text());
    return 3;
  }
  ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(pair->from.data()), .length = bytes, .lkey = pair->from.lkey()};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.send_flags = IBV_SEND_SIGNALED | (bytes <= 64 ? unsigned{IBV_SEND_INLINE} : 0U);
  request.wr.rdma.remote_addr = pair->to.window().address;
  request.wr.rdma.rkey = pair->to.window().rkey;
  const auto ticks = std::make_unique<programs::Histogram>();
  for (std::uint64_t i = 0; i < iterations + iterations / 10; ++i) {
    const std::uint64_t start = ticks_now();
    if (!post_and_poll(*pair, request)) return 3;
    if (i >= iterations / 10) ticks->record(ticks_now() - start);
  }
  const auto ns = [](double of) { return of / ticks_per_us() * 1e3; };
  fmt::print("{{\"median_ns\":{:.1f},\"mean_ns\":{:.1f}}}\n", ns(static_cast<double>(ticks->percentile(50))),
             ns(ticks->mean()));
  return 0;
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) {
  std::uint32_t bytes = 0;
  std::uint64_t iterations = 0;
  const auto parse = [](std::string_view text, auto& value) {
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{} && value != 0;
  };
  if (argc != 4 || !parse(argv[2], bytes) || !parse(argv[3], iterations)) {
    std::fputs("usage: bare_write DEVICE BYTES ITERATIONS\n", stderr);
    return 2;
  }
  return verbena::run(argv[1], bytes, iterations);
}
