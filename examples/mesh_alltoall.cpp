// An all-to-all exchange: in each round every process sends a block to every other one.
// usage: mpirun -np N mesh_alltoall                      MPI tells the processes of each other
//        mesh_alltoall DIRECTORY ID PROCESSES            or a directory that all of them see, without mpirun
#include <verbena/mesh_mpi.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mesh = verbena::mesh;
using namespace std::chrono_literals;
using verbena::Deadline;
using verbena::Status;

namespace {

constexpr unsigned kRounds = 1000;
constexpr std::size_t kBlockBytes = 1024;

[[noreturn]] void die(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);  // mpirun ends the others.
}

class AllToAll {
 public:
  AllToAll(mesh::Lane& lane, unsigned id, unsigned processes) : lane_(lane), id_(id), heard_(processes) {}

  /// Each process's block begins with the round and the sender.
  void run(unsigned round) {
    std::byte block[kBlockBytes]{};
    const unsigned mark[2] = {round, id_};
    std::memcpy(block, mark, sizeof mark);
    const auto processes = static_cast<unsigned>(heard_.size());
    for (unsigned i = 1; i < processes; ++i) {
      const unsigned peer = (id_ + i) % processes;  // Not all to process 0 first.
      Status sent = lane_.send(peer, block, 0);
      for (; sent == Status::kAgain; sent = lane_.send(peer, block, 0)) take();
      if (sent != Status::kOk) die("send", verbena::error_detail());
    }
    for (unsigned peer = 0; peer < processes; ++peer)
      while (peer != id_ && heard_[peer] <= round) take();
  }

 private:
  /// Waits for completions. A peer may be a round ahead.
  void take() {
    mesh::Completion some[16];
    const std::size_t count = lane_.wait(some, Deadline::after(20s));
    if (count == 0) die("wait", "nothing came in 20 s");
    for (std::size_t i = 0; i < count; ++i) {
      const mesh::Completion& one = some[i];
      if (one.status != Status::kOk) die("a peer", to_string(one.status));
      if (one.kind != mesh::Completion::Kind::kReceive) continue;
      unsigned mark[2];
      std::memcpy(mark, one.bytes.data(), sizeof mark);
      if (mark[0] != heard_[one.peer]++ || mark[1] != one.peer) die("a block", "is another peer's or round's");
      (void)lane_.release(one);
    }
  }

  mesh::Lane& lane_;
  const unsigned id_;
  std::vector<unsigned> heard_;  ///< Blocks of each peer.
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 1 && argc != 4) die("usage", "mpirun -np N mesh_alltoall | mesh_alltoall DIRECTORY ID PROCESSES");
  mesh::Options options;
  if (const char* device = std::getenv("VERBENA_NIC")) options.device = device;  // "soft", "mlx5_0"
  if (argc == 1) MPI_Init(&argc, &argv);
  if (argc == 4) {
    options.id = static_cast<unsigned>(std::atoi(argv[2]));
    options.processes = static_cast<unsigned>(std::atoi(argv[3]));
  }
  auto carrier = argc == 4 ? mesh::directory_carrier(argv[1], "alltoall") : mesh::mpi_carrier(MPI_COMM_WORLD, options);
  if (!carrier) die("carrier", carrier.error().text());
  auto joined = mesh::Mesh::join(options, std::move(*carrier));
  if (!joined) die("join", joined.error().text());
  mesh::Lane& lane = (*joined)->lane(0);

  AllToAll exchange(lane, options.id, options.processes);
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned round = 0; round < kRounds; ++round) exchange.run(round);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  if (options.id == 0)
    std::printf("%u processes, blocks of %zu bytes: %.2f us a round\n", options.processes, kBlockBytes,
                took.count() / kRounds);
  // Nobody leaves while others still wait for it.
  if (const auto all = lane.barrier(Deadline::after(20s)); !all) die("barrier", all.error().text());
  joined->reset();
  if (argc == 1) MPI_Finalize();
}
