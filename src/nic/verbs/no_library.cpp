// Replaces library.cpp if the Meson option `verbs` is off: then nothing refers to libibverbs.
#include "base/error.hpp"
#include "nic/verbs.hpp"

namespace verbena::nic {

namespace {
[[nodiscard]] std::unexpected<Error> left_out(const char* call) noexcept {
  return fail(Status::kUnsupported, call, 0,
              "this build has no RDMA devices: configure it with -Dverbs=enabled (needs libibverbs), or use the soft "
              "NIC");
}
}  // namespace

Result<std::unique_ptr<Nic>> open_verbs(const VerbsOptions&) { return left_out("open_verbs"); }

Result<std::vector<DeviceSummary>> list_devices() { return left_out("list_devices"); }

}  // namespace verbena::nic
