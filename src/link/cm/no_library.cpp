// Replaces the rest of this directory if the Meson option `verbs` is off: then nothing refers to librdmacm.
#include "base/error.hpp"
#include "link/cm/cm.hpp"

namespace verbena::link::cm {

namespace {
[[nodiscard]] std::unexpected<Error> left_out(const char* call) noexcept {
  return fail(Status::kUnsupported, call, 0,
              "this build has no RDMA CM: configure it with -Dverbs=enabled (needs librdmacm), or use the soft NIC");
}
}  // namespace

Result<std::unique_ptr<Manager>> start(nic::Nic&) { return left_out("cm::start"); }
Result<nic::VerbsOptions> place_of(const std::string&) { return left_out("cm::place_of"); }
Result<nic::VerbsOptions> place_towards(const std::string&, std::uint16_t, Deadline) {
  return left_out("cm::place_towards");
}

}  // namespace verbena::link::cm
