// Started by mpirun, without MPI: launched_pmix MODE, as at the end; by nobody: launched_pmix alone. launched.py looks
// at what they print.
#include "launched.hpp"

#include <verbena/mesh_pmix.hpp>

#include <dlfcn.h>
#include <pmix.h>

#include <csignal>

namespace {

bool server_ignores_fences = false;

}  // namespace

// In the place of PMIx's own.
extern "C" pmix_status_t PMIx_Fence_nb(const pmix_proc_t procs[], std::size_t proc_count, const pmix_info_t infos[],
                                       std::size_t info_count, pmix_op_cbfunc_t ended, void* context) {
  if (server_ignores_fences) return PMIX_SUCCESS;
  const auto real = reinterpret_cast<decltype(&PMIx_Fence_nb)>(dlsym(RTLD_NEXT, "PMIx_Fence_nb"));
  return real(procs, proc_count, infos, info_count, ended, context);
}

namespace verbena::mesh::test {
namespace {

/// Process 1 ends before it publishes, in order or not.
int be_absent(bool is_killed) {
  Options options = launched_options();
  auto carrier = pmix_carrier(options);
  VERBENA_EXPECT(carrier, "%s", carrier.error().text());
  if (options.id == 1 && is_killed) (void)std::raise(SIGKILL);
  // Whoever gives up first leaves: later ones miss it, too. The first dials process 1.
  options.join_timeout = options.id == 2 ? 6s : 9s;
  if (options.id != 1) {
    const Deadline at_last = Deadline::after(options.join_timeout + 30s);
    const auto mesh = Mesh::join(options, std::move(*carrier));
    VERBENA_EXPECT(!mesh && mesh.error().status() == Status::kTimedOut, "process %u joined one that is not there",
                   options.id);
    const std::string_view why = mesh.error().text();
    const std::string_view who = why.substr(0, why.find(';'));
    VERBENA_EXPECT(who.ends_with(" 1") || who.find(" 1,") != std::string_view::npos, "%s", mesh.error().text());
    VERBENA_EXPECT(options.id != 2 || (why.starts_with("1 of 3 others are missing: 1; ") &&
                                       why.find("process 1 has published nothing") != std::string_view::npos),
                   "%s", mesh.error().text());
    VERBENA_EXPECT(!at_last.passed(), "it took too long");
  }
  std::printf("process %u of %u saw it\n", options.id, options.processes);
  return 0;
}

/// All wait for all.
int await_all() {
  pmix_info_t time;
  const int seconds = 60;
  PMIX_INFO_CONSTRUCT(&time);
  PMIX_INFO_LOAD(&time, PMIX_TIMEOUT, &seconds, PMIX_INT);
  const pmix_status_t status = PMIx_Fence(nullptr, 0, &time, 1);
  VERBENA_EXPECT(status == PMIX_SUCCESS, "PMIx_Fence: %s", PMIx_Error_string(status));
  return 0;
}

/// Publishes under the carrier's own key, without the carrier.
int put(std::span<std::byte> bytes) {
  pmix_value_t value{};
  value.type = PMIX_BYTE_OBJECT;
  value.data.bo = {.bytes = reinterpret_cast<char*>(bytes.data()), .size = bytes.size()};
  VERBENA_EXPECT(PMIx_Put(PMIX_GLOBAL, "verbena.mesh.launched", &value) == PMIX_SUCCESS, "PMIx_Put");
  VERBENA_EXPECT(PMIx_Commit() == PMIX_SUCCESS, "PMIx_Commit");
  return 0;
}

/// Process 1 publishes another blob after all have found its first one.
int be_new() {
  Options options = launched_options();
  const auto carrier = pmix_carrier(options);
  VERBENA_EXPECT(carrier, "%s", carrier.error().text());
  Blob blob;
  blob.fill(std::byte{1});
  const auto published = (*carrier)->publish(options.id, blob, launch_patience());
  VERBENA_EXPECT(published, "%s", published.error().text());
  VERBENA_EXPECT(find_patiently(**carrier, 1).value_or(Blob{}) == blob, "the first blob is another");
  if (await_all() != 0) return 1;
  blob.fill(std::byte{2});
  if (options.id == 1 && put(blob) != 0) return 1;
  const Deadline deadline = launch_patience();
  while (find_patiently(**carrier, 1).value_or(Blob{}) != blob)
    VERBENA_EXPECT(!deadline.passed(), "process %u finds the first blob for ever", options.id);
  if (await_all() != 0) return 1;
  std::printf("process %u of %u saw it\n", options.id, options.processes);
  return 0;
}

/// What process 1 publishes for the mesh of the others is no blob.
int be_short() {
  Options options = launched_options();
  auto carrier = pmix_carrier(options);
  VERBENA_EXPECT(carrier, "%s", carrier.error().text());
  Blob blob;
  blob.fill(static_cast<std::byte>(options.id));
  const auto stranger = (*carrier)->publish(options.id + 1, blob, launch_patience());
  VERBENA_EXPECT(!stranger && stranger.error().status() == Status::kBadArgument, "it publishes for another process");
  const auto outside = (*carrier)->find(options.processes);
  VERBENA_EXPECT(!outside && outside.error().status() == Status::kBadArgument, "it finds one outside of the job");
  if (options.id == 1) {
    std::array<std::byte, 10> bytes{};
    if (put(bytes) != 0) return 1;
    options.job = "of one";
    carrier = pmix_carrier(options);
    VERBENA_EXPECT(carrier, "%s", carrier.error().text());
  }
  const auto published = (*carrier)->publish(options.id, blob, launch_patience());
  VERBENA_EXPECT(published, "%s", published.error().text());
  VERBENA_EXPECT(find_patiently(**carrier, options.id).value_or(Blob{}) == blob, "its own blob is another");
  if (options.id != 1) {
    const auto found = find_patiently(**carrier, 1);
    VERBENA_EXPECT(!found && found.error().status() == Status::kProtocol, "a blob of 10 bytes was taken");
    VERBENA_EXPECT(std::string_view(found.error().text()).find("10 bytes") != std::string_view::npos, "%s",
                   found.error().text());
  }
  if (await_all() != 0) return 1;
  std::printf("process %u of %u saw it\n", options.id, options.processes);
  return 0;
}

int be_alone() {
  Options options;
  const auto carrier = pmix_carrier(options);
  VERBENA_EXPECT(!carrier && carrier.error().status() == Status::kNotFound, "a PMIx server is there%s%s",
                 carrier ? "" : ", or: ", carrier ? "" : carrier.error().text());
  std::printf("%s\n", carrier.error().text());
  return 0;
}

int run_by_pmix(std::string_view mode) {
  if (mode == "join") return join(pmix_carrier);
  if (mode == "twice") return join(pmix_carrier) + join(pmix_carrier);
  if (mode == "absent" || mode == "killed") return be_absent(mode == "killed");
  if (mode == "unfenced") {
    // The fence has a third of this time.
    server_ignores_fences = true;
    return join(pmix_carrier, 15s);
  }
  if (mode == "anew") return be_new();
  if (mode == "short") return be_short();
  return be_alone();
}

}  // namespace
}  // namespace verbena::mesh::test

int main(int argc, char** argv) { return verbena::mesh::test::run_by_pmix(argc > 1 ? argv[1] : ""); }
