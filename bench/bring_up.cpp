// How long processes that mpirun starts take until each knows of all others: by PMIx alone, or as a mesh.
// usage: bring_up pmix|mesh     each process prints the ms from its start until it is done
#include <verbena/deadline.hpp>
#include <verbena/mesh_pmix.hpp>

#include <pmix.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace {

using namespace verbena;

constexpr const char* kKey = "bench.blob";
constexpr int kSeconds = 60;

bool is_good(const char* call, pmix_status_t status) {
  if (status == PMIX_SUCCESS) return true;
  std::fprintf(stderr, "bring_up: %s: %s\n", call, PMIx_Error_string(status));
  return false;
}

/// Reads what each process has put there: as many bytes as a process of a mesh publishes.
bool get_all(const pmix_proc_t& self, std::uint32_t processes) {
  for (std::uint32_t rank = 0; rank < processes; ++rank) {
    pmix_proc_t peer = self;
    peer.rank = rank;
    pmix_value_t* value = nullptr;
    if (!is_good("PMIx_Get", PMIx_Get(&peer, kKey, nullptr, 0, &value))) return false;
    const bool is_whole = value->type == PMIX_BYTE_OBJECT && value->data.bo.size == mesh::kBlobBytes;
    PMIX_VALUE_RELEASE(value);
    if (!is_whole) return false;
  }
  return true;
}

/// Init, fence and get.
bool bring_up_bare() {
  pmix_proc_t self;
  if (!is_good("PMIx_Init", PMIx_Init(&self, nullptr, 0))) return false;
  pmix_proc_t job = self;
  job.rank = PMIX_RANK_WILDCARD;
  pmix_value_t* size = nullptr;
  if (!is_good("PMIx_Get", PMIx_Get(&job, PMIX_JOB_SIZE, nullptr, 0, &size))) return false;
  const std::uint32_t processes = size->data.uint32;
  PMIX_VALUE_RELEASE(size);
  std::array<char, mesh::kBlobBytes> blob{};
  pmix_value_t value;
  PMIX_VALUE_CONSTRUCT(&value);
  value.type = PMIX_BYTE_OBJECT;
  value.data.bo.bytes = blob.data();
  value.data.bo.size = blob.size();
  if (!is_good("PMIx_Put", PMIx_Put(PMIX_GLOBAL, kKey, &value)) || !is_good("PMIx_Commit", PMIx_Commit())) return false;
  std::array<pmix_info_t, 2> infos;
  for (pmix_info_t& info : infos) PMIX_INFO_CONSTRUCT(&info);
  const bool collects = true;
  PMIX_INFO_LOAD(&infos[0], PMIX_COLLECT_DATA, &collects, PMIX_BOOL);
  PMIX_INFO_LOAD(&infos[1], PMIX_TIMEOUT, &kSeconds, PMIX_INT);
  return is_good("PMIx_Fence", PMIx_Fence(nullptr, 0, infos.data(), infos.size())) && get_all(self, processes);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view how = count == 2 ? arguments[1] : "";
  const std::uint64_t start = ticks_now();
  const auto tell = [start] {
    std::printf("%.3f ms\n", static_cast<double>(ticks_now() - start) / ticks_per_us() / 1e3);
    std::fflush(stdout);
    return 0;
  };
  if (how == "pmix") {
    if (!bring_up_bare()) return 1;
    (void)tell();
    return PMIx_Finalize(nullptr, 0) == PMIX_SUCCESS ? 0 : 1;
  }
  if (how != "mesh") return std::fputs("usage: bring_up pmix|mesh\n", stderr), 2;
  mesh::Options options;
  options.device = "soft";
  auto carrier = mesh::pmix_carrier(options);
  if (!carrier) return std::fprintf(stderr, "bring_up: %s\n", carrier.error().text()), 1;
  const auto joined = mesh::Mesh::join(options, std::move(*carrier));
  if (!joined) return std::fprintf(stderr, "bring_up: %s\n", joined.error().text()), 1;
  (void)tell();
  // All leave together.
  const auto ended = (*joined)->lane(0).barrier(Deadline::after(std::chrono::seconds{kSeconds}));
  return ended ? 0 : 1;
}
