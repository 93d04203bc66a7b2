#include "programs/transport_options.hpp"

namespace verbena::programs {

void add_transport_options(CLI::App& command, Transport& transport) {
  command.add_option("-d,--device", transport.device,
                     "NIC: soft, or an RDMA device such as mlx5_0, with its port mlx5_0:2 "
                     "(default: a usable RDMA device that has the address, else soft)");
  command.add_flag_callback(
      "-S,--socket", [&transport] { transport.bootstrap = Bootstrap::kSocket; },
      "connect by a TCP exchange instead of RDMA CM; both ends the same");
  command.add_option("--gid-index", transport.gid_index, "row of the device's GID table (default: the best)")
      ->check(CLI::Range(0, 255));
}

void add_allowed_uids(CLI::App& command, std::vector<uid_t>& uids, const char* what) {
  command.add_option("--allow-uid", uids, what)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace verbena::programs
